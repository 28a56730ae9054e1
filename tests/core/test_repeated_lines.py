"""Lines that one statement writes over and over are left out and counted."""

from __future__ import annotations

from taskgate.core import repeated_lines
from taskgate.core.repeated_lines import BURST, MAX_SOURCES, RepeatedLines, SuppressedLines


def test_first_lines_pass_then_one_a_second_with_the_number_omitted() -> None:
    lines = RepeatedLines()
    passed = [lines.passes("a", "error", "broken", 0.0) for _ in range(BURST + 10)]
    assert passed == [0] * BURST + [None] * 10
    assert lines.passes("a", "error", "broken", 0.5) is None
    assert lines.passes("a", "error", "broken", 1.0) == 11
    assert lines.passes("a", "error", "broken", 2.0) == 0


def test_other_sources_are_counted_separately() -> None:
    lines = RepeatedLines()
    for _ in range(BURST + 1):
        lines.passes("a", "error", "broken", 0.0)
    assert lines.passes("b", "error", "broken", 0.0) == 0


def test_omitted_lines_are_reported_when_no_line_follows() -> None:
    lines = RepeatedLines()
    for number in range(BURST + 3):
        lines.passes("a", "warning", f"line {number}", 0.0)
    assert lines.reports(0.5) == []
    assert lines.reports(1.5) == [SuppressedLines("warning", f"line {BURST + 2}", 3)]
    assert lines.reports(9.0) == []


def test_all_omitted_lines_are_reported_at_the_end() -> None:
    lines = RepeatedLines()
    for _ in range(BURST + 2):
        lines.passes("a", "error", "broken", 0.0)
    assert lines.all_reports() == [SuppressedLines("error", "broken", 2)]
    assert lines.all_reports() == []


def test_table_of_sources_has_a_limit() -> None:
    lines = RepeatedLines()
    for _ in range(BURST + 1):
        lines.passes(0, "error", "broken", 0.0)
    for source in range(1, MAX_SOURCES + 1):
        assert lines.passes(source, "info", "fine", 0.0) == 0
    assert len(lines._levels) == repeated_lines.MAX_SOURCES
    # The oldest entry was dropped, together with its count of omitted lines.
    assert lines.all_reports() == []
