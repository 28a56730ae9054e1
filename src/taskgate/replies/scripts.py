"""The script of a call: its plan, its calls, and the lines that differ from the last approved one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct

from taskgate.core.governance.script_changes import LineKind
from taskgate.core.governance.script_plan import Meets
from taskgate.replies.fields import Time, about


class ScriptMaker(Struct, frozen=True, kw_only=True):
    """The script that made a call."""

    task_id: Annotated[str, about("task of the script")]
    line: Annotated[int | None, about("line of the call in its source; null if unknown")]


class ToolInPlan(Struct, frozen=True, kw_only=True):
    """A tool that a script names."""

    tool: Annotated[str, about("name that callers see")]
    meets: Annotated[Meets, about("what a call of it would meet")]
    lines: Annotated[Sequence[int], about("lines that name it, the first 20")]


class PlanOfScript(Struct, frozen=True, kw_only=True):
    """What a script would call."""

    tools: Annotated[Sequence[ToolInPlan], about("tools that the script names, up to 100")]
    tools_left_out: Annotated[int, about("number of further tools")]
    unknown_tools_on_lines: Annotated[Sequence[int], about("lines that name a tool which the scope does not have")]
    computed_names_on_lines: Annotated[Sequence[int], about("lines where the name is computed at run time")]
    questions_on_lines: Annotated[Sequence[int], about("lines that ask the caller")]


class CallOfScript(Struct, frozen=True, kw_only=True):
    """One call of a script."""

    number: Annotated[int, about("number of the call in its script")]
    script: Annotated[
        str, about("task of the script that made the call: this one, or an earlier one that it resumes")
    ] = ""
    line: Annotated[int, about("line of the call in the source")]
    tool: Annotated[str, about("name that callers see; of a function of the gateway `sleep` or `ask`")]
    task_id: Annotated[str | None, about("task of the call; null of a function of the gateway and of a refused call")]
    state: Annotated[
        str, about("state of the task, `tool_error`, `refused`, or `waiting` of a function of the gateway")
    ]
    executed: Annotated[str | None, about("`yes`, `no` or `unknown`; null until it has ended")]
    received: Annotated[bool, about("whether the script has received the outcome")]
    message: Annotated[str, about("status message; may be empty")]
    created_at: Annotated[Time | None, about("time of the call")]
    finished_at: Annotated[Time | None, about("end of the call")]
    waits_until: Annotated[Time | None, about("end of a `sleep`")]


class CallTree(Struct, frozen=True, kw_only=True):
    """A page of the calls of a script."""

    steps: Annotated[int, about("number of steps that are stored")]
    calls_made: Annotated[int, about("number of all calls, including those of functions of the gateway")]
    calls: Annotated[
        Sequence[CallOfScript],
        about("up to 100 calls, in the order in which they were made: those of the scripts that it resumes come first"),
    ]
    next: Annotated[
        Any,
        about("value of `calls_after` for the next page: a number, or a text in an earlier script; null at the end"),
    ]


class ScriptLine(Struct, frozen=True, kw_only=True):
    """A line of one or both of two scripts."""

    kind: Annotated[
        LineKind,
        about("whether the line is in both scripts, only in the approved one or only in the new one"),
    ]
    before: Annotated[int | None, about("its number in the approved script; null if it is not in it")]
    after: Annotated[int | None, about("its number in the new script; null if it is not in it")]
    text: Annotated[str, about("the line, with escaped invisible characters")]


class ScriptDifference(Struct, frozen=True, kw_only=True):
    """The lines that differ between two scripts, with equal lines around them."""

    lines: Sequence[ScriptLine]
    left_out: Annotated[int, about("number of further lines that are not listed")]
    compared: Annotated[bool, about("whether the scripts were compared; not if one has more than 2,000 lines")]
