"""The colour and the words of a bar in the waterfall."""

from __future__ import annotations

import pytest

from taskgate.core.waterfall import Span, Window, _row


@pytest.mark.parametrize(
    ("state", "tone", "word"),
    [
        ("ok", "t-ok", ">1 s<"),
        ("running", "t-off", "running "),
        ("promoted", "t-run", "became a task "),
        ("error", "t-bad", "failed "),
        ("unknown_tool", "t-bad", "failed "),
        ("invalid_arguments", "t-bad", "failed "),
    ],
)
def test_every_type_of_error_is_shown_as_failed(state: str, tone: str, word: str) -> None:
    span = Span(1, 0, "request", "tools/call", "a", "s", "c", start=10.0, end=11.0, state=state)
    drawn = _row(span, 0, Window(10.0, 20.0), 20.0)
    assert f'class="{tone}"' in drawn
    assert word in drawn
