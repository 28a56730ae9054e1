"""The changed lines of a script."""

from __future__ import annotations

from taskgate.core.governance.script_changes import (
    CONTEXT,
    MAX_COMPARED,
    MAX_SHOWN,
    ChangedLine,
    LineKind,
    ScriptChanges,
    script_changes,
)


def rows(approved: str, new: str) -> list[tuple[str, int | None, int | None, str]]:
    return [(line.kind.value, line.before, line.after, line.text) for line in script_changes(approved, new).lines]


def test_changed_line_is_shown_with_its_numbers_in_both_scripts() -> None:
    assert rows("a\nb\nc\n", "a\nx\ny\nc\n") == [
        ("same", 1, 1, "a"),
        ("removed", 2, None, "b"),
        ("added", None, 2, "x"),
        ("added", None, 3, "y"),
        ("same", 3, 4, "c"),
    ]


def test_added_and_removed_lines_shift_the_numbers() -> None:
    assert rows("a\nb", "new\na\nb")[0] == ("added", None, 1, "new")
    assert rows("a\nb", "b") == [("removed", 1, None, "a"), ("same", 2, 1, "b")]


def test_equal_scripts_have_no_changes() -> None:
    assert script_changes("a\nb", "a\nb") == ScriptChanges()


def test_only_a_few_equal_lines_are_shown_around_a_change() -> None:
    approved = "\n".join(f"line {n}" for n in range(100))
    new = approved.replace("line 50\n", "changed\n")
    found = script_changes(approved, new)
    assert len(found.lines) == 2 * CONTEXT + 2
    assert found.lines[0] == ChangedLine(LineKind.SAME, 48, 48, "line 47")


def test_long_differences_are_cut_and_very_long_scripts_are_not_compared() -> None:
    many = "\n".join(f"old {n}" for n in range(MAX_SHOWN))
    found = script_changes(many, many.replace("old", "new"))
    assert (len(found.lines), found.left_out, found.compared) == (MAX_SHOWN, MAX_SHOWN, True)
    assert script_changes("\n" * (MAX_COMPARED + 1), "") == ScriptChanges(compared=False)


def test_changes_are_json() -> None:
    line = {"kind": "added", "before": None, "after": 1, "text": "a"}
    assert script_changes("", "a").as_json() == {"lines": [line], "left_out": 0, "compared": True}
