"""The lines of a script that differ from those of the last approved one, with a few equal lines around them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

CONTEXT: Final = 3
"""Equal lines before and after a change."""
MAX_COMPARED: Final = 2_000
"""Lines of a script that are compared; longer ones take too long."""
MAX_SHOWN: Final = 400


class LineKind(StrEnum):
    """Whether a line is in both scripts, only in the approved one, or only in the new one."""

    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"


class ChangedLine(msgspec.Struct, frozen=True):
    """One line. The number is that in the approved script (`before`) or the new one (`after`); None if it is not in it."""

    kind: LineKind
    before: int | None
    after: int | None
    text: str


class ScriptChanges(msgspec.Struct, frozen=True):
    """The changed lines in order. Numbers that do not follow each other mean equal lines that are not listed."""

    lines: tuple[ChangedLine, ...] = ()
    left_out: int = 0
    """Lines beyond `MAX_SHOWN`."""
    compared: bool = True
    """False if a script is too long to be compared."""

    def as_json(self) -> dict[str, Any]:
        """Return the changes for the API."""
        rows = [
            {"kind": line.kind.value, "before": line.before, "after": line.after, "text": line.text}
            for line in self.lines
        ]
        return {"lines": rows, "left_out": self.left_out, "compared": self.compared}


def script_changes(approved: str, new: str) -> ScriptChanges:
    """Compare two scripts line by line."""
    # Imported here: only gateways with approvals of scripts need it.
    from difflib import SequenceMatcher

    before, after = approved.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED:
        return ScriptChanges(compared=False)
    lines: list[ChangedLine] = []
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT):
        for tag, first, last, start, end in group:
            if tag == "equal":
                lines += [
                    ChangedLine(LineKind.SAME, first + i + 1, start + i + 1, before[first + i])
                    for i in range(last - first)
                ]
                continue
            lines += _numbered(LineKind.REMOVED, before, first, last)
            lines += _numbered(LineKind.ADDED, after, start, end)
    return ScriptChanges(tuple(lines[:MAX_SHOWN]), max(0, len(lines) - MAX_SHOWN))


def _numbered(kind: LineKind, lines: Sequence[str], first: int, last: int) -> list[ChangedLine]:
    removed = kind is LineKind.REMOVED
    return [
        ChangedLine(kind, number if removed else None, None if removed else number, lines[number - 1])
        for number in range(first + 1, last + 1)
    ]
