"""The digest of a script changes with every character of its source."""

from __future__ import annotations

from taskgate.core.scripts.code_digest import code_digest, script_digest


def test_any_change_of_the_source_is_another_script() -> None:
    assert code_digest("await shop.buy()") == code_digest("await shop.buy()")
    assert len({code_digest(code) for code in ("", "1", "1 ", "1\n", "é")}) == 5


def test_digest_of_a_script_includes_its_inputs() -> None:
    code = "await shop.buy(**inputs)"
    assert script_digest(code, "") == code_digest(code)
    assert len({script_digest(code, inputs) for inputs in ("", "sha256:1", "sha256:2")}) == 3
