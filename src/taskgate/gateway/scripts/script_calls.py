"""The calls of a script: each passes the same checks as a call of its caller, and becomes a task with the step that makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.governance.script_plan import ScriptOrigin
from taskgate.core.scripts.bind_arguments import ArgumentError, bind_arguments
from taskgate.core.scripts.record import OpenCall, RefusedCall
from taskgate.core.scripts.stubs import parameter_order
from taskgate.core.tasks.task import Task
from taskgate.gateway.calls.lookup import unknown_tool
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.pre_send_recheck import CREDENTIAL_REVOKED
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import read_ahead
from taskgate.gateway.scripts.call_outcomes import encode_outcome, raised_by
from taskgate.gateway.scripts.call_request import call_request
from taskgate.gateway.scripts.earlier_calls import EarlierCalls
from taskgate.gateway.scripts.passed_results import PassedResults
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.ports.script_interpreter import CallKind, PendingCall, Raised
from taskgate.store.operations.scripts import ChildCall

MAX_NAME: Final = 120
"""Characters of a name that are kept; a script may call any name."""
MAX_SLEEP_S: Final = 30 * 24 * 3600.0
_ASK_PARAMETERS: Final = ("message", "schema")


class PreparedStepCall(msgspec.Struct, frozen=True):
    """A new call of a step. `child` and `request` are set if it becomes a task."""

    open: OpenCall
    child: ChildCall | None = None
    request: Request | None = None
    reused: str = ""
    """The call of an earlier script whose result it gets."""
    refused: RefusedCall | None = None
    """Set if it is a call of a tool that was refused."""


class ScriptCalls(msgspec.Struct, eq=False):
    """Prepares the calls of one script."""

    parts: ScriptParts
    script: Task
    digest: str
    """Digest of the source of the script."""
    earlier: EarlierCalls
    passed: PassedResults

    async def prepare(self, calls: Sequence[PendingCall]) -> list[PreparedStepCall]:
        """Check the calls in the order in which the script made them. What is refused raises in the script."""
        return [await self._prepare(call) for call in calls]

    async def _prepare(self, call: PendingCall) -> PreparedStepCall:
        try:
            given = [msgspec.json.decode(call.positional), msgspec.json.decode(call.keywords)]
            positional, keywords = await self.passed.resolved(given, call.references)
            match call.kind:
                case CallKind.SLEEP:
                    return PreparedStepCall(self._sleep(call, positional, keywords))
                case CallKind.ASK:
                    return PreparedStepCall(_ask(call, positional, keywords))
                case CallKind.TOOL:
                    return await self._tool_call(call, positional, keywords)
        except ArgumentError as problem:
            return _settled(call, Raised("invalid_params", f"{call.tool or call.kind.value} {problem}.", "no"))
        except TaskgateError as problem:
            return _settled(call, raised_by(problem))

    def _sleep(self, call: PendingCall, positional: list[Any], keywords: dict[str, Any]) -> OpenCall:
        seconds = bind_arguments(("seconds",), positional, keywords).arguments.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SLEEP_S:
            raise ArgumentError(f"takes a number of seconds from 0 to {MAX_SLEEP_S:.0f}")
        due_ms = self.parts.tasks.store.now_ms() + math.ceil(seconds * 1000)
        return OpenCall(call.id, "sleep", call.line, due_ms=due_ms)

    async def _tool_call(self, call: PendingCall, positional: list[Any], keywords: dict[str, Any]) -> PreparedStepCall:
        request, tool, timeout_s = await self._request(call, positional, keywords)
        arguments = request.params["arguments"]
        prepared = await self.parts.durable.prepare(request, tool, arguments)
        new, approval = prepared.call, prepared.approval
        if timeout_s is not None:
            new = replace(new, budget_ms=min(new.budget_ms, max(1, math.ceil(timeout_s * 1000))))
        raw = bytes(new.params["arguments"])
        await read_ahead(raw)
        records = self.parts.tasks.records
        draft = records.draft(request, new, records.new_id())
        known = await self.earlier.outcome(draft)
        if known is not None:
            before, outcome = known
            outcome = await self.passed.outcome(before, call.offset, outcome)
            return PreparedStepCall(_open(call, settled=encode_outcome(outcome)), reused=before.id)
        script = self.script
        draft = msgspec.structs.replace(
            draft,
            caller=script.caller,
            conversation=script.conversation,
            limited_as=script.limited_as,
            generation=script.generation,
            parent=script.id,
            script_line=call.line,
            script_digest=self.digest,
        )
        if approval is not None:
            approval = msgspec.structs.replace(approval, from_script=ScriptOrigin(script.id, call.line))
        audit = self.parts.tasks.audit_approval(approval, draft.id) if approval is not None else None
        child_call = ChildCall(
            number=call.id, draft=draft, approval=approval, audit=audit, limits=records.pending_limits()
        )
        return PreparedStepCall(_open(call, child=draft.id), child_call, request)

    async def _request(
        self, call: PendingCall, positional: list[Any], keywords: dict[str, Any]
    ) -> tuple[Request, ToolRef, float | None]:
        if call.tool == OwnToolName.RUN_SCRIPT:
            raise CallerError("not_allowed", "A script cannot start scripts. The call was not executed.")
        script = self.script
        if self.parts.people.was_revoked_since(script.principal, script.created_ms):
            text = "The credential of the caller of this script was revoked. The call was not executed."
            raise CallerError(CREDENTIAL_REVOKED, text)
        plan, lookup = self.parts.lookup.plan.value, self.parts.lookup
        named = call_request(plan, self.script, self.digest, call.tool, {})
        tool = await lookup.tool(named, call.tool)
        if tool.entry is not None and not tool.entry.is_for_model:
            raise unknown_tool(call.tool)
        bound = bind_arguments(parameter_order(schema_of(tool.entry)), positional, keywords)
        return call_request(plan, self.script, self.digest, tool.wire, bound.arguments), tool, bound.timeout_s


def _ask(call: PendingCall, positional: list[Any], keywords: dict[str, Any]) -> OpenCall:
    given = bind_arguments(_ASK_PARAMETERS, positional, keywords).arguments
    message, schema = given.get("message"), given.get("schema")
    if type(message) is not str or not message:
        raise ArgumentError("takes a message, a string")
    if schema is not None and type(schema) is not dict:
        raise ArgumentError('takes a schema, such as {"type": "string"} or {"type": "object", "properties": {...}}')
    shown = wire.encode({"message": message, "schema": schema})
    return OpenCall(call.id, "ask", call.line, question=f"ask-{call.id}", arguments=shown)


def _open(call: PendingCall, child: str = "", settled: bytes | None = None) -> OpenCall:
    return OpenCall(call.id, call.tool, call.line, child=child, offset=call.offset, settled=settled)


def _settled(call: PendingCall, outcome: Raised) -> PreparedStepCall:
    """A call that raises without having become a task."""
    name = call.tool or call.kind.value
    refused = RefusedCall(call.id, call.tool[:MAX_NAME], call.line, outcome.type) if call.tool else None
    return PreparedStepCall(OpenCall(call.id, name, call.line, settled=encode_outcome(outcome)), refused=refused)
