"""A caller reads a resource or fetches a prompt: find the owner, let the gates decide, carry it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address
from taskgate.core.catalog.entry import MARK, CatalogEntry, EntryKind
from taskgate.core.catalog.tool_listing import TaskSupport
from taskgate.core.errors import CallerError, UpstreamError
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members, Raw
from taskgate.gateway.calls.call_tool import as_tool_result
from taskgate.gateway.calls.routing import Lookup, Sending
from taskgate.gateway.calls.skill_files import SkillFiles
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.validate import Completions, HandedOut, Validation
from taskgate.gateway.catalog.views import View
from taskgate.gateway.governance.evaluate import asked_to_read
from taskgate.gateway.governance.gate import HeldReadings
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.gateway.requests.request import Request, fair_key_of, memory_key
from taskgate.turns import LARGE_BYTES


def permitted(view: View, server: str, name: str, kind: PatternKind) -> bool:
    return not isinstance(view.decision_on(kind, server, name), Denied)


@dataclass(frozen=True, slots=True)
class Readings:
    """`resources/read`, `prompts/get`, and what everything else that concerns one resource asks first: whose it is, and whether
    this caller may have it."""

    lookup: Lookup
    sending: Sending
    held: HeldReadings
    completions: Completions
    contents: PinnedContents
    skill_files: SkillFiles

    async def read_resource(self, request: Request) -> bytes:
        shown = _text(request.params, "uri", "resources/read")
        server, uri = await self.address_of(request, shown)
        await self.agreed(request, PatternKind.RESOURCE, server, uri, shown=shown)
        return await self.carried(request, server, uri, {**request.members(), "uri": wire.raw(uri)}, shown=shown)

    async def get_prompt(self, request: Request) -> bytes:
        name = _text(request.params, "name", "prompts/get")
        view = await self.lookup.view(request)
        prompt = view.prompt(name)
        if prompt is None or prompt.entry is None:
            view = await self.lookup.look_for_name(request, view, name) or view
            prompt = view.prompt(name)
        if prompt is None or not permitted(view, prompt.server, prompt.name, PatternKind.PROMPT):
            raise CallerError("unknown_prompt", f"There is no prompt {name[:120]!r} here.")
        await self.agreed(request, PatternKind.PROMPT, prompt.server, prompt.name, shown=prompt.wire)
        arguments = request.params.get("arguments")
        if type(arguments) is dict and arguments and self.lookup.plan.value.features.learn:
            self.completions.note(memory_key(request), prompt.server, prompt.name, arguments)
        params = request.members()
        params["name"] = wire.raw(prompt.name)
        return await self.carried(request, prompt.server, prompt.name, params)

    async def address_of(self, request: Request, uri: str) -> Address:
        """The server that a URI belongs to and what that server calls it, if this caller may use it."""
        view = await self.lookup.view(request)
        handed_out_by = self.sending.handed_out_by(request, uri)
        found = view.address_of(uri, handed_out_by)
        if found is None:
            view = await self.lookup.look_for_uri(request, view) or view
            found = view.address_of(uri, handed_out_by)
        if found is not None and permitted(view, *found, PatternKind.RESOURCE):
            return found
        text = "There is no such resource here."
        if found is None and view.addresses.is_ambiguous(uri):
            text = "Several servers use this address. List tools and resources again: they name the address of each."
        raise CallerError("unknown_resource", text, data={"uri": uri[:500]})

    async def agreed(self, request: Request, kind: PatternKind, server: str, name: str, *, shown: str) -> None:
        """Policy and people have their say; returns when the request may go on."""
        view = await self.lookup.view(request)
        decision = view.decision_on(kind, server, name)
        if type(decision) is Forward and decision.note is None:
            return
        caller, arguments = request.caller, request.members().get("arguments")
        subset = self.lookup.views.subset(self.lookup.plan.value, caller.scope, request.narrowing)
        given = bytes(arguments) if arguments is not None else None
        asked = asked_to_read(caller, kind, server, name, given, revision=subset.revision)
        await self.held.permit(request, asked, decision, shown)

    async def carried(
        self, request: Request, server: str, name: str, params: Members, *, shown: str | None = None
    ) -> bytes:
        """The result, with its links noted: its caller may read them. `shown` is what the caller calls a resource."""
        call = self.sending.prepared(request, server, request.message.method, params, name)
        result = await self.sending.carry(request, server, call)
        if call.method == "resources/read":
            await self.contents.check(server, name, result)
            await self.skill_files.check(request, server, name, result)
        if shown is not None and shown != name:
            result = await readdressed(result, name, shown)
        await self.sending.note_links(request, server, result)
        return result


async def readdressed(result: bytes, uri: str, shown: str) -> bytes:
    """A result of `resources/read` with the address that the caller asked for in the place of the server's own."""
    members = await members_of(result)
    contents: list[Raw] = []
    for content in await elements_of(members.get("contents", Raw(b"[]"))):
        inner = await members_of(content) if bytes(memoryview(content)[:1]) == b"{" else {}
        if bytes(inner.get("uri", b"")) == wire.encode(uri):
            content = Raw(wire.join({**inner, "uri": wire.raw(shown)}))
        contents.append(content)
    if "contents" in members:
        members["contents"] = wire.raw(contents)
    return wire.join(members)


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
        if len(result) >= LARGE_BYTES:
            await self._handed_out.note_large(fair_key_of(task), task.scope, task.server, result)
        elif MARK in result:
            self._handed_out.note(fair_key_of(task), task.scope, task.server, result)
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
