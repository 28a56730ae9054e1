"""Names from callers and servers on a page: what is invisible or misleading is escaped, everything else is unchanged."""

from __future__ import annotations

import pytest

from taskgate.dashboard.text_filters import clear


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\u202e", "\\u202e"),
        ("\u200b", "\\u200b"),
        ("\x07", "\\u0007"),
        ("\x7f", "\\u007f"),
        ("\n", "\\n"),
        ("\u3164", "\\u3164"),
    ],
)
def test_character_that_misleads_is_escaped(character: str, shown: str) -> None:
    assert clear(f"pay{character}roll") == f"pay{shown}roll"


@pytest.mark.parametrize("text", ["payroll", 'say "no"', "C:\\new\\u202e", '\\"', "", "Zürich", 'Zürich "\\"'])
def test_visible_text_is_unchanged(text: str) -> None:
    assert clear(text) == text
