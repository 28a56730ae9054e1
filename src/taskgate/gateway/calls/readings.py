"""`resources/read` and `prompts/get`: find the server, check permission, forward the request."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address
from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Members, Raw
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.calls.skill_files import SkillFiles
from taskgate.gateway.catalog.completions import Completions
from taskgate.gateway.catalog.views import View
from taskgate.gateway.governance.gated_call import gated_reading
from taskgate.gateway.governance.held_readings import HeldReadings
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.requests.caller_keys import memory_key
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.gateway.requests.request import Request


def permitted(view: View, server: str, name: str, kind: PatternKind) -> bool:
    return not isinstance(view.decision_on(kind, server, name), Denied)


class Readings(msgspec.Struct, frozen=True):
    """`resources/read` and `prompts/get`, and the ownership and permission checks of every request for one resource."""

    lookup: Lookup
    sending: Sending
    held: HeldReadings
    completions: Completions
    contents: PinnedContents
    skill_files: SkillFiles

    async def read_resource(self, request: Request) -> bytes:
        shown = _text(request.params, "uri", "resources/read")
        server, uri = await self.address_of(request, shown)
        await self.require_permission(request, PatternKind.RESOURCE, server, uri, shown=shown)
        return await self.forward(request, server, uri, {**request.members(), "uri": wire.raw(uri)}, shown=shown)

    async def get_prompt(self, request: Request) -> bytes:
        name = _text(request.params, "name", "prompts/get")
        view = await self.lookup.view(request)
        prompt = view.prompt(name)
        if prompt is None or prompt.entry is None:
            view = await self.lookup.find_name(request, view, name) or view
            prompt = view.prompt(name)
        if prompt is None or not permitted(view, prompt.server, prompt.name, PatternKind.PROMPT):
            raise CallerError("unknown_prompt", f"There is no prompt {name[:120]!r} here.")
        await self.require_permission(request, PatternKind.PROMPT, prompt.server, prompt.name, shown=prompt.wire)
        arguments = request.params.get("arguments")
        if type(arguments) is dict and arguments and self.lookup.plan.value.features.learn:
            self.completions.note(memory_key(request), prompt.server, prompt.name, arguments)
        params = request.members()
        params["name"] = wire.raw(prompt.name)
        return await self.forward(request, prompt.server, prompt.name, params)

    async def address_of(self, request: Request, uri: str) -> Address:
        """The server of a URI and the server's own URI. Raises CallerError if the caller may not use it."""
        view = await self.lookup.view(request)
        handed_out_by = self.sending.handed_out_by(request, uri)
        found = view.address_of(uri, handed_out_by)
        if found is None:
            view = await self.lookup.find_uri(request, view) or view
            found = view.address_of(uri, handed_out_by)
        if found is not None and permitted(view, *found, PatternKind.RESOURCE):
            return found
        text = "There is no such resource here."
        if found is None and view.addresses.is_ambiguous(uri):
            text = "Several servers use this address. List tools and resources again: they name the address of each."
        raise CallerError("unknown_resource", text, data={"uri": uri[:500]})

    async def require_permission(
        self, request: Request, kind: PatternKind, server: str, name: str, *, shown: str
    ) -> None:
        """Apply the rules, and wait for an approval if one is needed. Returns when the request may continue."""
        view = await self.lookup.view(request)
        decision = view.decision_on(kind, server, name)
        if type(decision) is Forward and decision.note is None:
            return
        caller, arguments = request.caller, request.members().get("arguments")
        subset = self.lookup.views.subset(self.lookup.plan.value, caller.scope, request.narrowing)
        given = bytes(arguments) if arguments is not None else None
        reading = gated_reading(caller, kind, server, name, given, revision=subset.revision)
        await self.held.permit(request, reading, decision, shown)

    async def forward(
        self, request: Request, server: str, name: str, params: Members, *, shown: str | None = None
    ) -> bytes:
        """Send the request and record the links of its result. `shown`: the URI that the caller uses."""
        call = self.sending.prepared(request, server, request.message.method, params, name)
        result = await self.sending.carry(request, server, call)
        if call.method == "resources/read":
            await self.contents.check(server, name, result)
            await self.skill_files.check(request, server, name, result)
        if shown is not None and shown != name:
            result = await with_shown_uri(result, name, shown)
        await self.sending.note_links(request, server, result)
        return result


async def with_shown_uri(result: bytes, uri: str, shown: str) -> bytes:
    """Replace the server's own URI in a result of `resources/read` by the one that the caller requested."""
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
