"""Own tool that runs a script as a durable task."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.core.facts.table import NO_SCRIPT
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.pipeline import decide
from taskgate.core.meta import meta_of
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.deadlines import read_ttl
from taskgate.core.tool_class import ToolClass
from taskgate.core.wire import Raw
from taskgate.gateway.calls.durable_calls import TTL_META
from taskgate.gateway.calls.task_contract import requests_handle
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.own_tools.script_plans import plan_for_approvers, planned, refuse_faults
from taskgate.gateway.own_tools.script_stubs import describe_tools
from taskgate.gateway.own_tools.script_tool_parts import ScriptToolParts
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, refused, text_reply
from taskgate.gateway.requests.caller_keys import idempotency_key
from taskgate.gateway.requests.request import Request
from taskgate.gateway.scripts.script_tools import names_of
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.ports.upstream_replies import RelayedError

MAX_CODE: Final = 200_000


async def run_script(parts: ScriptToolParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    """Store the script as a task. Callers with tasks get a handle; for others the reply is held as for any call.

    A stateless caller that can answer the questions of the script gets them in the reply, and returns with its answers.
    """
    if request.script:
        raise CallerError("not_allowed", "A script cannot start scripts. The call was not executed.")
    resumed = await parts.tasks.asking.resumed(request, OwnToolName.RUN_SCRIPT.value)
    if resumed is not None:
        return await _held(parts.tasks.hold_reply(request, resumed, waiting_for_people=False))
    names = names_of(await parts.lookup.view(request))
    source = await parts.sources.read(given["code"], names, request.caller.limit_key)
    if given.get("dry_run"):
        return text_reply(await planned(parts.lookup, request, source))
    refuse_faults(source.faults)
    if given.get("resume_of") is not None:
        await parts.tasks.records.refuse_foreign(request, given["resume_of"])
    approval = await _approval(parts, request)
    if approval is not None:
        plan = await planned(parts.lookup, request, source)
        approval = msgspec.structs.replace(approval, plan=plan_for_approvers(plan))
    new, key = _new_call(parts, request, given), idempotency_key(request)
    if "task" in request.params or requests_handle(request):
        if request.session is not None:
            request.session.mark_task_use()
        return (await parts.tasks.create(request, new, approval, key))[1]

    async def hold() -> bytes:
        return (await parts.tasks.hold(request, new, approval, key))[1]

    return await _held(hold())


async def _held(reply: Awaitable[bytes]) -> ToolReply | bytes:
    """A held reply. A script that ended with an error of the gateway is a result, because models see results."""
    try:
        return await reply
    except RelayedError as problem:
        error = wire.parse_strictly(problem.raw)
        meta = wire.raw({"taskgate/error": error.get("data", {})})
        return ToolReply(refused(str(error.get("message"))).blocks, True, {"_meta": meta})


async def _approval(parts: ScriptToolParts, request: Request) -> ApprovalRequest | None:
    """Pass the script through rules, policy and approval like any tool. Its calls are evaluated when it makes them."""
    tool = OwnToolName.RUN_SCRIPT.value
    decision = decide(parts.lookup.plan.value.gates.of_caller(NO_SCRIPT), PatternKind.TOOL, OWN_SERVER, tool)
    if type(decision) is Forward and decision.note is None:
        return None
    caller, arguments = request.caller, bytes(request.members().get("arguments", Raw(b"{}")))
    call = GatedCall(
        principal=caller.principal,
        roles=caller.roles,
        scope=caller.scope,
        server=OWN_SERVER,
        name=tool,
        arguments=arguments,
        facts=caller.facts,
    )
    return await parts.gate.settle(request, call, decision, tool)


def _new_call(parts: ScriptToolParts, request: Request, given: dict[str, Any]) -> NewCall:
    plan, name = parts.lookup.plan.value, OwnToolName.RUN_SCRIPT.value
    calls = plan.tasks
    ttl = given.get("ttl")
    if ttl is None and type(task := request.params.get("task")) is dict:
        ttl = task.get("ttl")
    if ttl is None:
        ttl = meta_of(request.params).get(TTL_META)
    members = request.members()
    return NewCall(
        server=OWN_SERVER,
        tool=name,
        wire_name=name,
        params={"name": wire.raw(name), "arguments": members.get("arguments", Raw(b"{}"))},
        tool_class=ToolClass.ONCE,
        definition_digest="",
        policy_revision=plan.gates.revision,
        budget_ms=int(plan.limits.script_time * 1000),
        ttl_ms=read_ttl(ttl, default_ms=calls.default_ttl_ms, max_ms=calls.max_ttl_ms).ms,
        keep_result_ms=calls.keep_result_ms,
        script=True,
    )


SCRIPT_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.RUN_SCRIPT,
            "Run a Python script that calls the tools of this server, and return the value of its last line. Use it instead of "
            "many single calls: loops, joins and filters run here, and only what the script returns or prints comes back. Tools "
            "are async functions: `await files.read_file(path='a')`; run calls in parallel with `asyncio.gather`. "
            "describe_tools returns their signatures. The script survives restarts, waits for approvals, and never repeats a "
            "call.",
            (
                Parameter("code", ArgumentKind.TEXT, "The Python source.", required=True, longest=MAX_CODE),
                Parameter("inputs", ArgumentKind.OBJECT, "Values that the script reads as `inputs`."),
                Parameter("ttl", ArgumentKind.WHOLE, "How many milliseconds the result is kept.", minimum=1),
                Parameter(
                    "dry_run",
                    ArgumentKind.YES_NO,
                    "Do not run it: return which tools it names, what a call of each would meet (forward, approval, policy, "
                    "denied), and what cannot run.",
                    default=False,
                ),
                Parameter(
                    "resume_of",
                    ArgumentKind.TEXT,
                    "The task of a script that failed: calls that it made with the same tool and arguments are not made again, and "
                    "their results are used.",
                ),
            ),
            Family.SCRIPT,
            reads_only=False,
            as_task=True,
        ),
        run_script,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.DESCRIBE_TOOLS,
            "Return the tools as Python signatures, for scripts of run_script. Without arguments all of them.",
            (
                Parameter(
                    "names", ArgumentKind.TEXTS, "Only these: names of tools as listed or as in scripts, or of servers."
                ),
                Parameter("search", ArgumentKind.TEXT, "Only those that fit: a few words of what they do."),
            ),
            Family.SCRIPT,
        ),
        describe_tools,
        bare=True,
    ),
)
