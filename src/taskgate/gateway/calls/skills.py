"""`skills/get` and `resources/directory/read`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address
from taskgate.core.catalog.pages import EntryList, page
from taskgate.core.catalog.skills import children, declares_skills, reads_directories
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import cached_privately, strip_result
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import Readings, permitted
from taskgate.gateway.calls.skill_discovery import SkillDiscovery
from taskgate.gateway.calls.skill_files import SkillFiles, read_entry
from taskgate.gateway.catalog.views import View
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream_replies import RelayedError

PAGE: Final = 1000
_NOT_OFFERED: Final = -32601


class Skills(msgspec.Struct, frozen=True):
    readings: Readings
    files: SkillFiles
    discovery: SkillDiscovery

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
            # A skill need not be listed. The caller may read the files that it was given.
            given = [uri, *(file.uri for file in entry.skill.files or ())]
            self.readings.sending.note_given(request, server, given)
        members = wire.members_of(result)
        members["skill"] = Raw(view.render_skill(server, entry.raw))
        return _result(request, wire.join(members))

    def _skill_at(self, request: Request, view: View, shown: str) -> Address:
        """The skill at a URI: a listed one, one of the server that the URI leads to, or one of the only server with skills."""
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
        await self.readings.require_permission(request, PatternKind.RESOURCE, server, uri, shown=shown)
        if reads_directories(view.capabilities.get(server, {})):
            return await self._forward(request, view, server, uri)
        files = [file for entry in self.files.known.entries(server) for file in entry.skill.files or ()]
        readable = {file.uri: file for file in files if permitted(view, server, file.uri, PatternKind.RESOURCE)}
        inside = children(readable.values(), uri)
        if inside is None:
            raise _no_folder(shown)
        rows = [wire.encode(row) for row in inside]
        found_page = page(
            EntryList([self._row(view, server, Raw(row)) for row in rows]), request.params.get("cursor"), PAGE
        )
        body: dict[str, Any] = {"resources": [Raw(row) for row in found_page.items]}
        if found_page.next_cursor is not None:
            body["nextCursor"] = found_page.next_cursor
        return _result(request, wire.encode(body))

    def _may_read_folder(self, view: View, server: str, uri: str) -> bool:
        """A folder is hidden together with its skill."""
        skill = self.files.known.around(server, uri)
        if skill is not None and not permitted(view, server, skill.name, PatternKind.RESOURCE):
            return False
        return permitted(view, server, uri, PatternKind.RESOURCE)

    async def _forward(self, request: Request, view: View, server: str, uri: str) -> bytes:
        """The folder as its server returns it, without the files that this caller may not read."""
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

    async def _view(self, request: Request) -> View:
        await self.discovery.run(request)
        return await self.readings.lookup.view(request)


def _result(request: Request, result: bytes) -> bytes:
    """Add cache fields for the stateless generation only."""
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
