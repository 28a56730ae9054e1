"""The digest of a script changes with every character of its source."""

from __future__ import annotations

from taskgate.core.scripts.code_digest import code_digest, script_digest


def test_any_change_of_the_source_is_another_script() -> None:
    assert code_digest("await shop.buy()") == code_digest("await shop.buy()")
    assert len({code_digest(code) for code in ("", "1", "1 ", "1\n", "é")}) == 5


def test_digest_of_a_script_includes_its_inputs() -> None:
    code = "await shop.buy(**inputs)"
    assert script_digest(code, None) == script_digest(code, {}) == code_digest(code)
    assert script_digest(code, {"a": 1, "b": 2}) == script_digest(code, {"b": 2, "a": 1})
    assert len({script_digest(code, inputs) for inputs in (None, {"path": "/"}, {"path": "/data"}, {"a": None})}) == 4
