"""Analyze a script before it runs: what cannot run, which tools it names, and how a call of each would be decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import Decision, action_of
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, planned_script
from taskgate.core.scripts.check_source import SourceFault
from taskgate.core.scripts.plan import NamedCall
from taskgate.core.settings.governance import Action
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.requests.request import Request
from taskgate.gateway.scripts.script_sources import ReadSource


def refuse_faults(faults: Sequence[SourceFault]) -> None:
    """Raise CallerError if the script uses names or syntax that are not available."""
    if faults:
        listed = "\n".join(map(str, faults))
        raise CallerError(
            "invalid_params", f"The script was not run:\n{listed}", data={"faults": [_fault(each) for each in faults]}
        )


async def planned(lookup: Lookup, request: Request, source: ReadSource) -> dict[str, Any]:
    """Return the plan as JSON."""
    view, plan = await lookup.view_of_scripts(request), source.plan
    return {
        "tools": [{**_named(call), "meets": _meets(view.tools[call.tool].decision).value} for call in plan.tools],
        "unknown_tools": [_named(call) for call in plan.unknown],
        "computed_names_on_lines": list(plan.dynamic),
        "questions_on_lines": list(plan.question_lines),
        "faults": [_fault(each) for each in source.faults],
    }


def plan_for_approvers(plan: Mapping[str, Any]) -> PlannedScript:
    """Return the part of a script's plan that is stored with its approval request."""
    tools = [PlannedTool(tool["tool"], Meets(tool["meets"]), tuple(tool["lines"])) for tool in plan["tools"]]
    unknown = [line for tool in plan["unknown_tools"] for line in tool["lines"]]
    return planned_script(tools, unknown, plan["computed_names_on_lines"], plan["questions_on_lines"])


def _named(call: NamedCall) -> dict[str, Any]:
    return {"tool": call.tool, "lines": list(call.lines)}


def _fault(fault: SourceFault) -> dict[str, Any]:
    return {"line": fault.line, "problem": fault.problem, "instead": fault.instead}


def _meets(decision: Decision) -> Meets:
    return _MEETS[action_of(decision)]


_MEETS: Final = {
    Action.FORWARD: Meets.FORWARD,
    Action.APPROVE: Meets.APPROVAL,
    Action.POLICY: Meets.POLICY,
    Action.DENY: Meets.DENIED,
}
