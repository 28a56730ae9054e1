"""Names from callers and servers on a page: what is invisible or misleading is escaped, everything else is unchanged."""

from __future__ import annotations

import pytest

from taskgate.dashboard.text_filters import clear, short_id, span


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [("tg_01M7R5856RRY848FC2B5JV1KZC", "tg_…JV1KZC"), ("tg_01M7", "tg_01M7"), ("", "")],
)
def test_long_id_is_shortened_to_its_kind_and_end(text: str, shown: str) -> None:
    assert short_id(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(59, "59 s"), (120, "2 min"), (7_260, "2 h 1 min"), (86_400, "1 day"), (172_799, "1 day"), (172_800, "2 days")],
)
def test_time_span_is_shown_in_its_largest_units(seconds: int, shown: str) -> None:
    assert span(seconds) == shown
