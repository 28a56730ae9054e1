"""What the approver of a script sees of its calls before it runs: the tools that it names, and how a call of each would be
decided.

It is made when the approval is requested and stored with it, so it contains names of tools and line numbers only, and no text of
the script. It decides nothing: every call of the script is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_TOOLS: Final = 100
MAX_LINES: Final = 20
_SHOWN_LINES: Final = 5


class Meets(StrEnum):
    """How a call would be decided under the current rules."""

    FORWARD = "forward"
    APPROVAL = "approval"
    POLICY = "policy"
    DENIED = "denied"


_WORDS: Final = {
    Meets.FORWARD: "allowed",
    Meets.APPROVAL: "needs approval",
    Meets.POLICY: "decided by policy",
    Meets.DENIED: "denied",
}


class PlannedTool(msgspec.Struct, frozen=True):
    """A tool that the script names. `lines` are the first lines that name it."""

    tool: str
    meets: Meets
    lines: tuple[int, ...]


class PlannedScript(msgspec.Struct, frozen=True):
    """The plan of a script, with limits on its length."""

    tools: tuple[PlannedTool, ...] = ()
    """In the order of their first lines."""
    tools_left_out: int = 0
    unknown_lines: tuple[int, ...] = ()
    """Lines that name a tool which the scope does not have."""
    computed_lines: tuple[int, ...] = ()
    """Lines where the name of the tool is computed at run time, so that any tool of the scope may be called."""
    question_lines: tuple[int, ...] = ()
    """Lines that ask the caller."""

    def as_json(self) -> dict[str, Any]:
        """Return the plan for the API."""
        return {
            "tools": [{"tool": tool.tool, "meets": tool.meets.value, "lines": list(tool.lines)} for tool in self.tools],
            "tools_left_out": self.tools_left_out,
            "unknown_tools_on_lines": list(self.unknown_lines),
            "computed_names_on_lines": list(self.computed_lines),
            "questions_on_lines": list(self.question_lines),
        }


class ScriptOrigin(msgspec.Struct, frozen=True):
    """The script that made a held call."""

    task_id: str
    line: int = 0
    """0 if unknown."""

    def as_json(self) -> dict[str, Any]:
        """Return the origin for the API."""
        return {"task_id": self.task_id, "line": self.line or None}

    def in_words(self) -> str:
        """Return the origin as text for people."""
        return f"script {self.task_id}, line {self.line}" if self.line else f"script {self.task_id}"


def planned_script(
    tools: Sequence[PlannedTool],
    unknown: Sequence[int] = (),
    computed: Sequence[int] = (),
    question_lines: Sequence[int] = (),
) -> PlannedScript:
    """Return the plan without what exceeds its limits. Tools that are not simply allowed are kept first."""
    kept = sorted(tools, key=lambda tool: tool.meets is Meets.FORWARD)[:MAX_TOOLS]
    names = {tool.tool for tool in kept}
    shown = tuple(PlannedTool(tool.tool, tool.meets, _first(tool.lines)) for tool in tools if tool.tool in names)
    return PlannedScript(
        tools=shown,
        tools_left_out=len(tools) - len(shown),
        unknown_lines=_first(unknown),
        computed_lines=_first(computed),
        question_lines=_first(question_lines),
    )


def meets_word(meets: Meets) -> str:
    """Return how a call would be decided, as text for people."""
    return _WORDS[meets]


def lines_text(lines: Sequence[int]) -> str:
    """Return line numbers as text; long lists are shortened."""
    shown = ", ".join(map(str, lines[:_SHOWN_LINES]))
    return f"line{'' if len(lines) == 1 else 's'} {shown}{', …' if len(lines) > _SHOWN_LINES else ''}"


def plan_notes(plan: PlannedScript) -> tuple[str, ...]:
    """Return notes for the approver: computed tool names, unknown tools and questions."""
    notes = []
    if plan.computed_lines:
        notes.append(
            f"tool names or code are computed at run time on {lines_text(plan.computed_lines)}: any tool may be called"
        )
    if plan.unknown_lines:
        notes.append(f"tools that the scope does not have are named on {lines_text(plan.unknown_lines)}")
    if plan.question_lines:
        notes.append(f"the caller is asked on {lines_text(plan.question_lines)}")
    return tuple(notes)


def plan_summary(plan: PlannedScript) -> str:
    """The plan in one line, without names of tools."""
    count = len(plan.tools) + plan.tools_left_out
    kinds = [(sum(1 for tool in plan.tools if tool.meets is meets), word) for meets, word in _WORDS.items()]
    parts = [f"{number} {word}" for number, word in (*kinds, (plan.tools_left_out, "not listed")) if number]
    named = f"names {count} tool{'' if count == 1 else 's'}" if count else "names no tools"
    return "; ".join([f"{named}: {', '.join(parts)}" if parts else named, *plan_notes(plan)])


def _first(lines: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(lines))[:MAX_LINES])
