"""Analyze a script before it runs: what cannot run, which tools it names, and how a call of each would be decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import Decision, Denied, NeedsApproval, NeedsPolicy
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, planned_script
from taskgate.core.scripts.check_source import SourceFault, check_source
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.plan import NamedCall, plan_of
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.requests.request import Request

_SHORT: Final = 4_000
"""Characters that are checked without a thread."""


async def refuse_faults(code: str, names: Sequence[PythonName]) -> None:
    """Raise CallerError if the script uses names or syntax that are not available."""
    faults = await _faults(code, names)
    if faults:
        listed = "\n".join(map(str, faults))
        raise CallerError(
            "invalid_params", f"The script was not run:\n{listed}", data={"faults": [_fault(each) for each in faults]}
        )


async def planned(lookup: Lookup, request: Request, code: str, names: Sequence[PythonName]) -> dict[str, Any]:
    """Return the plan as JSON."""
    view = await lookup.view(request)
    plan = await asyncio.to_thread(plan_of, code, names)
    return {
        "tools": [
            {**_named(call), "meets": _meets(view.for_script(view.tools[call.tool]).decision).value}
            for call in plan.tools
        ],
        "unknown_tools": [_named(call) for call in plan.unknown],
        "computed_names_on_lines": list(plan.dynamic),
        "questions_on_lines": list(plan.question_lines),
        "faults": [_fault(each) for each in await _faults(code, names)],
    }


def plan_for_approvers(plan: Mapping[str, Any]) -> PlannedScript:
    """Return the part of a script's plan that is stored with its approval request."""
    tools = [PlannedTool(tool["tool"], Meets(tool["meets"]), tuple(tool["lines"])) for tool in plan["tools"]]
    unknown = [line for tool in plan["unknown_tools"] for line in tool["lines"]]
    return planned_script(tools, unknown, plan["computed_names_on_lines"], plan["questions_on_lines"])


async def _faults(code: str, names: Sequence[PythonName]) -> tuple[SourceFault, ...]:
    if len(code) <= _SHORT:
        return check_source(code, names)
    return await asyncio.to_thread(check_source, code, names)


def _named(call: NamedCall) -> dict[str, Any]:
    return {"tool": call.tool, "lines": list(call.lines)}


def _fault(fault: SourceFault) -> dict[str, Any]:
    return {"line": fault.line, "problem": fault.problem, "instead": fault.instead}


def _meets(decision: Decision) -> Meets:
    match decision:
        case NeedsApproval():
            return Meets.APPROVAL
        case NeedsPolicy():
            return Meets.POLICY
        case Denied():
            return Meets.DENIED
    return Meets.FORWARD
