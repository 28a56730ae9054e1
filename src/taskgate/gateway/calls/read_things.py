"""A caller reads a resource or fetches a prompt: find the owner, let the gates decide, carry it.

Carry what is not a tool call to a server: at once, or in its turn where that server takes only so many at a time.

Readings, prompts and completions stand in the same line as tool calls (which have more to do when they wait: see `call_tool`).
"""

from __future__ import annotations

from typing import Any

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.tool_listing import TaskSupport
from taskgate.core.errors import CallerError, UpstreamError
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members
from taskgate.gateway.calls.call_tool import as_tool_result
from taskgate.gateway.calls.context import Context, look_for_name, look_for_uri
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.validate import HandedOut, Validation
from taskgate.gateway.catalog.views import View
from taskgate.gateway.governance.evaluate import Asked
from taskgate.gateway.requests.request import Request, fair_key
from taskgate.ports.upstream import Upstream, UpstreamCall
from taskgate.turns import LARGE_BYTES


async def carry_in_turn(context: Context, request: Request, upstream: Upstream, call: UpstreamCall) -> bytes:
    line = context.budgets.lines.get(upstream.id) if context.budgets.lines else None
    if line is None:
        return await context.relay.carry(request, upstream, call)
    async with line.slot(fair_key(request), call.timeout_s):
        return await context.relay.carry(request, upstream, call)


async def read_resource(context: Context, request: Request) -> bytes:
    uri = _text(request.params, "uri", "resources/read")
    server = await owner_of(context, request, uri)
    await agreed(context, request, PatternKind.RESOURCE, server, uri, shown=uri)
    return await _carried(context, request, server, uri, request.members())


async def agreed(context: Context, request: Request, kind: PatternKind, server: str, name: str, *, shown: str) -> None:
    """Policy and people have their say; returns when the request may go on."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    decision = view.decision_on(kind, server, name)
    if type(decision) is Forward and decision.note is None:
        return
    caller, arguments = request.caller, request.members().get("arguments")
    asked = Asked(
        caller.principal,
        caller.roles,
        caller.scope,
        server,
        name,
        bytes(arguments) if arguments is not None and kind is PatternKind.PROMPT else wire.encode({"name": name}),
        kind=kind,
        scope_revision=context.views.subset(context.plan, caller.scope, request.narrowing).revision,
        facts=caller.facts,
    )
    await context.held_readings.permit(request, asked, decision, shown)


async def owner_of(context: Context, request: Request, uri: str) -> str:
    """The server that a URI belongs to, if this caller may use it."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    caller = request.caller
    handed_out_by = context.handed_out.owner(caller.principal, caller.scope, uri)
    server = view.owner_of(uri, handed_out_by)
    if server is None:
        view = await look_for_uri(context, request, view) or view
        server = view.owner_of(uri, handed_out_by)
    if server is None or not permitted(view, server, uri, PatternKind.RESOURCE):
        raise CallerError("unknown_resource", "There is no such resource here.", data={"uri": uri[:500]})
    return server


def permitted(view: View, server: str, name: str, kind: PatternKind) -> bool:
    return not isinstance(view.decision_on(kind, server, name), Denied)


async def get_prompt(context: Context, request: Request) -> bytes:
    name = _text(request.params, "name", "prompts/get")
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    prompt = view.prompt(name)
    if prompt is None or prompt.entry is None:
        view = await look_for_name(context, request, view, name) or view
        prompt = view.prompt(name)
    if prompt is None or not permitted(view, prompt.server, prompt.name, PatternKind.PROMPT):
        raise CallerError("unknown_prompt", f"There is no prompt {name[:120]!r} here.")
    await agreed(context, request, PatternKind.PROMPT, prompt.server, prompt.name, shown=prompt.wire)
    arguments = request.params.get("arguments")
    if type(arguments) is dict and arguments and context.plan.features.learn:
        context.completions.note(fair_key(request), prompt.server, prompt.name, arguments)
    params = request.members()
    params["name"] = wire.raw(prompt.name)
    return await _carried(context, request, prompt.server, prompt.name, params)


async def _carried(context: Context, request: Request, server: str, name: str, params: Members) -> bytes:
    upstream, timeout_s = context.upstreams[server], context.plan.timeout_of(server)
    call = context.relay.call_for(request, upstream, request.message.method, params, name=name, timeout_s=timeout_s)
    result = await carry_in_turn(context, request, upstream, call)
    caller = request.caller
    if len(result) < LARGE_BYTES:
        context.handed_out.note(caller.principal, caller.scope, server, result)
    else:
        await context.handed_out.note_large(caller.principal, caller.scope, server, result)
    return result


def _text(params: dict[str, Any], key: str, method: str) -> str:
    value = params.get(key)
    if type(value) is not str:
        raise CallerError("invalid_params", f'{method} needs "{key}", a string.')
    return value


# What the runs of tasks ask about the tool they run, long after the call was judged: as its server lists it now.


class ToolFacts:
    def __init__(self, catalogs: Catalogs, validation: Validation, handed_out: HandedOut) -> None:
        self._catalogs = catalogs
        self._validation = validation
        self._handed_out = handed_out

    def can_be_upstream_task(self, server: str, tool: str) -> bool:
        entry = self._entry(server, tool)
        return entry is not None and entry.task_support in (TaskSupport.OPTIONAL, TaskSupport.REQUIRED)

    async def check_output(self, task: Task, result: bytes) -> bytes:
        """What a task's tool gave, held against its schema; where that is enforced, a misfit becomes an error result."""
        if len(result) < LARGE_BYTES:
            self._handed_out.note(task.principal, task.scope, task.server, result)
        else:
            await self._handed_out.note_large(task.principal, task.scope, task.server, result)
        entry = self._entry(task.server, task.tool) if self._validation.on else None
        if entry is None or "outputSchema" not in entry.definition:
            return result
        try:
            await self._validation.output(entry, task.wire_name, result)
        except UpstreamError as problem:
            return as_tool_result(problem, task.generation)
        return result

    def _entry(self, server: str, tool: str) -> CatalogEntry | None:
        offer = self._catalogs.offer(server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return next((entry for entry in entries if entry.name == tool), None)
