"""The digest of a script changes with every character of its source."""

from __future__ import annotations

from taskgate.core.scripts.code_digest import code_digest


def test_any_change_of_the_source_is_another_script() -> None:
    assert code_digest("await shop.buy()") == code_digest("await shop.buy()")
    assert len({code_digest(code) for code in ("", "1", "1 ", "1\n", "é")}) == 5
