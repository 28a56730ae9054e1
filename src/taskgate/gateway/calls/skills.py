"""`skills/get` and `resources/directory/read`: one skill by its address, and what is in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address
from taskgate.core.catalog.pages import page
from taskgate.core.catalog.skills import children, declares_skills, reads_directories
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import cached_privately, strip_result
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import Readings, permitted
from taskgate.gateway.calls.skill_files import SkillFiles, read_entry
from taskgate.gateway.catalog.views import View
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import RelayedError, Upstream
from taskgate.telemetry.logs import log

PAGE: Final = 1000
_NOT_OFFERED: Final = -32601
_STDIO: Final = "stdio"


@dataclass(frozen=True, slots=True)
class Skills:
    readings: Readings
    files: SkillFiles
    upstreams: Live[Mapping[str, Upstream]]
    _tried: dict[str, str] = field(default_factory=dict)
    """Programs that were started in the stateless generation to see whether they have skills there."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, request: Request) -> bytes:
        shown = _uri(request)
        view = await self._view(request)
        server, uri = self._skill_at(request, view, shown)
        params = {**request.members(), "uri": wire.raw(uri)}
        call = self.readings.sending.prepared(request, server, request.message.method, params, uri)
        try:
            result = await self.readings.sending.carry(request, server, call)
        except RelayedError as error:
            if error.code == _NOT_OFFERED:
                raise _unknown(shown) from None
            raise
        entry = read_entry(server, uri, result)
        if not self.files.pins.permits_skill(entry):
            raise _unknown(shown)
        self.files.known.keep(entry)
        if shown not in view.skills:
            # A skill need not be listed: a caller that was given its files may read them.
            given = [uri, *(file.uri for file in entry.skill.files or ())]
            self.readings.sending.note_given(request, server, given)
        members = wire.members_of(result)
        members["skill"] = Raw(view.render_skill(server, entry.raw))
        return _result(request, wire.join(members))

    def _skill_at(self, request: Request, view: View, shown: str) -> Address:
        """The skill that an address means: a listed one, one of the server that the address leads to, or one of the only server
        that has any."""
        entry = view.skills.get(shown)
        found = Address(entry.server, entry.name) if entry is not None else self._unlisted(request, view, shown)
        may_read = found is not None and permitted(view, *found, PatternKind.RESOURCE)
        if found is None or not may_read:
            raise _unknown(shown)
        return found

    def _unlisted(self, request: Request, view: View, shown: str) -> Address | None:
        able = [server for server in view.subset.servers if declares_skills(view.capabilities.get(server, {}))]
        found = view.addresses.owner(shown)
        if found is None:
            handed_out_by = self.readings.sending.handed_out_by(request, shown)
            only = able[0] if len(able) == 1 and not view.addresses.is_ambiguous(shown) else None
            server = handed_out_by or only
            found = Address(server, shown) if server is not None else None
        return found if found is not None and found.server in able else None

    async def read_directory(self, request: Request) -> bytes:
        shown = _uri(request)
        view = await self._view(request)
        found = view.address_of(shown, self.readings.sending.handed_out_by(request, shown))
        if found is None or not self._may_read_folder(view, *found):
            raise _no_folder(shown)
        server, uri = found
        await self.readings.agreed(request, PatternKind.RESOURCE, server, uri, shown=shown)
        if reads_directories(view.capabilities.get(server, {})):
            return await self._forwarded(request, view, server, uri)
        files = [file for entry in self.files.known.entries(server) for file in entry.skill.files or ()]
        readable = {file.uri: file for file in files if permitted(view, server, file.uri, PatternKind.RESOURCE)}
        inside = children(readable.values(), uri)
        if inside is None:
            raise _no_folder(shown)
        rows = [wire.encode(row) for row in inside]
        found_page = page([self._row(view, server, Raw(row)) for row in rows], request.params.get("cursor"), PAGE)
        body: dict[str, Any] = {"resources": [Raw(row) for row in found_page.items]}
        if found_page.next_cursor is not None:
            body["nextCursor"] = found_page.next_cursor
        return _result(request, wire.encode(body))

    def _may_read_folder(self, view: View, server: str, uri: str) -> bool:
        """A folder of a skill is hidden with the skill."""
        skill = self.files.known.around(server, uri)
        if skill is not None and not permitted(view, server, skill.name, PatternKind.RESOURCE):
            return False
        return permitted(view, server, uri, PatternKind.RESOURCE)

    async def _forwarded(self, request: Request, view: View, server: str, uri: str) -> bytes:
        """The folder as its server returns it, without what this caller may not read."""
        params = {**request.members(), "uri": wire.raw(uri)}
        call = self.readings.sending.prepared(request, server, request.message.method, params, uri)
        members = await members_of(await self.readings.sending.carry(request, server, call))
        rows: list[Raw] = []
        for row in await elements_of(members.get("resources", Raw(b"[]"))):
            inner = wire.parse_strictly(bytes(row))
            own = inner.get("uri") if type(inner) is dict else None
            if type(own) is str and permitted(view, server, own, PatternKind.RESOURCE):
                rows.append(Raw(self._row(view, server, row)))
        members["resources"] = wire.raw(rows)
        return _result(request, wire.join(members))

    def _row(self, view: View, server: str, row: Raw) -> bytes:
        members = wire.members_of(row)
        own = wire.parse_strictly(bytes(members["uri"]))
        shown = view.addresses.shown(server, own)
        return bytes(row) if shown == own else wire.join({**members, "uri": wire.raw(shown)})

    # Programs that have skills in the stateless generation only

    async def _view(self, request: Request) -> View:
        await self.look_for_skills(request)
        return await self.readings.lookup.view(request)

    def may_have_more(self, servers: tuple[str, ...]) -> bool:
        """Whether a program of these may have skills that are not known: it was listed in the stateful generation, in which some
        servers have none."""
        return any(self._may_have(server) for server in servers)

    def _may_have(self, server: str) -> bool:
        offer, upstream = self.readings.lookup.catalogs.offer(server), self.upstreams.value.get(server)
        if offer is None or upstream is None or upstream.transport != _STDIO:
            return False
        stateful = offer.generation is Generation.STATEFUL and not declares_skills(offer.capabilities)
        return stateful and self._tried.get(server) != upstream.fingerprint

    async def look_for_skills(self, request: Request) -> None:
        """Connect to such programs as this caller's calls would, and list them again where they use the stateless generation."""
        if request.generation is not Generation.STATELESS:
            return
        lookup = self.readings.lookup
        servers = lookup.views.subset(lookup.plan.value, request.caller.scope, request.narrowing).servers
        await lookup.catalogs.settled(servers, listing=True)
        if not self.may_have_more(servers):
            return
        async with self._looking:
            found = await asyncio.gather(*(self._look(request, server) for server in servers if self._may_have(server)))
            again = [server for server in found if server is not None]
            if again:
                await lookup.catalogs.ready(again)

    async def _look(self, request: Request, server: str) -> str | None:
        """The server, if it has to be listed again."""
        upstream = self.upstreams.value[server]
        try:
            link = await upstream.link(request.link_key, request.delivery.profile)
        except TaskgateError as problem:
            log.info("skills not listed", server=server, why=problem.message)
            return None
        finally:
            self._tried[server] = upstream.fingerprint
        if link.generation is not Generation.STATELESS:
            return None
        self.readings.lookup.catalogs.changed(server)
        return server


def _result(request: Request, result: bytes) -> bytes:
    """Only results of the stateless generation have cache fields."""
    if request.generation is Generation.STATELESS:
        return cached_privately(result)
    return strip_result(result, request.message.method)


def _uri(request: Request) -> str:
    uri = request.params.get("uri")
    if type(uri) is not str:
        raise CallerError("invalid_params", f'{request.message.method} needs "uri", a string.')
    return uri


def _unknown(uri: str) -> CallerError:
    return CallerError(
        "unknown_skill",
        "There is no skill with this address. skills/list returns the skills of this scope.",
        data={"uri": uri[:500]},
    )


def _no_folder(uri: str) -> CallerError:
    return CallerError(
        "unknown_skill",
        "There is no folder with this address. Folders are those of skills, without a slash at the end.",
        data={"uri": uri[:500]},
    )
