"""Compare the files of skills with the size and digest in the entry of their skill.

A different file may be newer than the entry in the gateway: then the entry is fetched again and checked against the pins as if
it had been listed. A file that still differs is not returned. An entry lists all files of its skill, so a URI in the skill's
folder that it does not list counts as different, unless the server lists it as a plain resource.
"""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.pinned_content import content_bytes
from taskgate.core.catalog.skills import InvalidSkill, mismatch, read_skill
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.wire import Raw
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.catalog.known_skills import KnownSkills, PlaceInSkill
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream_replies import RelayedError

GET: Final = "skills/get"
_NONE: Final = Raw(b"[]")


class SkillFiles(msgspec.Struct, frozen=True):
    lookup: Lookup
    sending: Sending
    known: KnownSkills
    pins: Pins

    async def check(self, request: Request, server: str, uri: str, result: bytes) -> None:
        """Check the result of reading a resource. Raises UpstreamError if it is part of a skill and differs from the skill's
        entry.
        """
        found = self.known.at(server, uri)
        if found is None:
            return
        content = await _content(result)
        why = _difference(found, content)
        if why is None:
            return
        fresh = await self.entry(request, server, found.entry.name)
        if fresh is not None and self.pins.permits_skill(fresh):
            self.known.keep(fresh)
            self.lookup.catalogs.changed(server)
            now = self.known.at(server, uri)
            why = _difference(now, content) if now is not None else None
            if why is None:
                return
        raise UpstreamError(
            "content_mismatch",
            f"A file of a skill of the server {server} differs from the skill's entry: {why}. It was not returned. "
            "Get the skill again; if the error stays, the server has to be repaired.",
            executed=Executed.YES,
            data={"uri": uri[:500], "skill": found.entry.name[:500]},
        )

    async def entry(self, request: Request, server: str, uri: str) -> CatalogEntry | None:
        """The entry of a skill as its server returns it now; None if it has none."""
        params = {key: value for key, value in request.members().items() if key == "_meta"}
        call = self.sending.prepared(request, server, GET, {**params, "uri": wire.raw(uri)}, uri)
        try:
            result = await self.sending.carry(request, server, call)
        except RelayedError:
            return None
        return read_entry(server, uri, result)


def read_entry(server: str, uri: str, result: bytes) -> CatalogEntry:
    """The entry in the result of `skills/get`. Raises UpstreamError if it is not an entry of this skill."""
    raw = wire.members_of(result).get("skill", Raw(b"null"))
    definition = wire.parse_strictly(bytes(raw))
    try:
        skill = read_skill(definition if type(definition) is dict else {})
    except InvalidSkill as fault:
        raise _broken(server, f"it is not valid: {fault}") from None
    if skill.uri != uri:
        raise _broken(server, "it is that of another skill")
    return CatalogEntry(EntryKind.SKILL, server, uri, raw, skill_entry=skill)


def _broken(server: str, why: str) -> UpstreamError:
    return UpstreamError(
        "upstream_protocol",
        f"The server {server} returned an entry for {GET} that cannot be used: {why}.",
        executed=Executed.YES,
    )


async def _content(result: bytes) -> bytes | None:
    """The bytes of the file that was read."""
    contents = await elements_of((await members_of(result)).get("contents", _NONE))
    if len(contents) != 1:
        return None
    inner = await members_of(contents[0]) if bytes(memoryview(contents[0])[:1]) == b"{" else {}
    return content_bytes({key: wire.parse_strictly(bytes(inner[key])) for key in ("text", "blob") if key in inner})


def _difference(place: PlaceInSkill, content: bytes | None) -> str | None:
    if place.file is None:
        return "its skill does not list it"
    return mismatch(place.file, content) if content is not None else "it has no content"
