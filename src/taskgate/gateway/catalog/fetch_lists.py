"""Fetch all lists of one upstream in parallel. Each succeeds or fails on its own.

A list that hangs does not delay the others: after a short time the lists received so far are published, and the rest when they
arrive or fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind, name_in, read_entry, skill_fault
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.settings.limits import Limits
from taskgate.core.sliced_reading import TOO_LARGE, reads_quickly
from taskgate.core.wire import Members, Raw
from taskgate.gateway.catalog.offer import LISTS, NOTHING_OMITTED, Offer, OmittedTools, has_list
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.ports.client_profile import LISTING_PROFILE
from taskgate.ports.link import Link
from taskgate.ports.upstream_call import own_call
from taskgate.ports.upstream_replies import ErrorReply
from taskgate.reading import elements_of_any_depth, members_of_any_depth
from taskgate.turns import PORTION, let_others_run

PUBLISH_AFTER_S: Final = 1.0
PORTION_BYTES: Final = 128 * 1024
"""Bytes of definitions that are parsed without yielding."""
MAX_FAULTS: Final = 10
"""Invalid entries per page that are logged by name."""
LONGEST_NAME_BYTES: Final = 8_192
NAMED_IN_NOTES: Final = 20
"""Omitted entries per list that are logged by name; further ones are counted."""
_METHOD_NOT_FOUND: Final = -32601
RESULT_TOO_LARGE: Final = "result_too_large"


async def fetch_lists(
    link: Link, limits: Limits, before: Offer | None, publish: Callable[[Offer], Awaitable[None]]
) -> Offer:
    """Fetch everything that the upstream offers. Raises the error if not a single list could be fetched.

    If only some lists have been received after `PUBLISH_AFTER_S`, `publish` is called with those.
    """
    fetch = _Fetch(link, limits, before)
    try:
        if not await fetch.wait(PUBLISH_AFTER_S) and fetch.any_listed:
            await publish(fetch.offer())
        await fetch.wait(max(0.0, limits.tools_fetch_timeout_ms / 1000 - PUBLISH_AFTER_S))
        return fetch.final()
    finally:
        await fetch.end()


class _Fetch:
    def __init__(self, link: Link, limits: Limits, before: Offer | None) -> None:
        self._link = link
        self._limits = limits
        self._before = before
        self._notes: dict[EntryKind, list[str]] = {}
        self._ttls: list[float] = []
        self._omitted: OmittedTools | None = None
        listed = before.entries.values() if before is not None else ()
        self._known = {(entry.kind, bytes(entry.raw)): entry for entries in listed for entry in entries}
        """Entries of the last fetch: an entry with the same bytes need not be parsed again, and is kept once."""
        loop = asyncio.get_running_loop()
        self._running = {
            kind: loop.create_task(self._list(kind)) for kind in LISTS if has_list(link.capabilities, kind)
        }

    async def wait(self, seconds: float) -> bool:
        """Whether all lists were received or have failed."""
        pending = [task for task in self._running.values() if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=seconds)
        return all(task.done() for task in self._running.values())

    @property
    def any_listed(self) -> bool:
        return any(task.done() and task.exception() is None for task in self._running.values())

    def offer(self, *, final: bool = False) -> Offer:
        """Return the lists received so far, with the previous entries for those that are missing."""
        entries: dict[EntryKind, tuple[CatalogEntry, ...]] = {}
        failed: dict[EntryKind, TaskgateError] = {}
        for kind, task in self._running.items():
            problem = self._problem(kind, task)
            if problem is None:
                entries[kind] = task.result()
            else:
                if final or task.done():
                    failed[kind] = problem
                kept = self._before.entries.get(kind) if self._before is not None else None
                entries[kind] = kept if kept is not None else ()
        return Offer(
            entries=entries,
            capabilities=self._link.capabilities,
            instructions=self._link.instructions,
            generation=self._link.generation,
            listed_ms=clock.wall_ms(),
            ttl_s=min(self._ttls) / 1000 if self._ttls else None,
            notes=tuple(note for kind in LISTS for note in self._notes.get(kind, ())),
            failed=failed,
            complete=final,
            omitted=self._omitted or (self._before.omitted if self._before is not None else NOTHING_OMITTED),
        )

    def final(self) -> Offer:
        problems = [self._problem(kind, task) for kind, task in self._running.items()]
        first = problems[0] if problems else None
        if first is not None and all(problem is not None for problem in problems):
            raise first
        return self.offer(final=True)

    def _problem(self, kind: EntryKind, task: asyncio.Task[tuple[CatalogEntry, ...]]) -> TaskgateError | None:
        if not task.done() or task.cancelled():
            method = LISTS[kind].method
            return UpstreamError(
                "upstream_timeout", f"The server {self._link.server} took too long to answer {method}."
            )
        problem = task.exception()
        if problem is not None and not isinstance(problem, TaskgateError):
            raise problem
        return problem

    async def end(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _list(self, kind: EntryKind) -> tuple[CatalogEntry, ...]:
        how, limits, server = LISTS[kind], self._limits, self._link.server
        found: list[CatalogEntry] = []
        omitted = _Omitted(kind, server)
        cursor: Raw | None = None
        seen: set[bytes] = set()
        for number in range(1, limits.tools_max_pages + 1):
            try:
                members = await self._page(how.method, cursor)
            except UpstreamError as problem:
                if problem.error_type != RESULT_TOO_LARGE:
                    raise
                if number == 1:
                    raise UpstreamError(RESULT_TOO_LARGE, _first_page_too_large(server, how.method, limits)) from None
                # The pages before it are usable, and without its cursor there is no way to the following ones.
                omitted.rest(f"has a page (number {number}) beyond limits.result_bytes; the rest, from that page on,")
                break
            if how.key in members:
                await self._read(kind, members[how.key], found, omitted)
            cursor = members.get("nextCursor")
            if cursor is None or bytes(cursor) in (b"null", b'""') or bytes(cursor) in seen:
                break
            if len(found) > limits.tools_per_upstream:
                break
            seen.add(bytes(cursor))
        else:
            omitted.rest(f"has more than {limits.tools_max_pages} pages (limits.tools_max_pages); the rest")
        if len(found) > limits.tools_per_upstream:
            maximum, first = limits.tools_per_upstream, found[limits.tools_per_upstream].name[:80]
            omitted.rest(
                f"has more than {maximum} entries (limits.tools_per_upstream); what follows, from {first!r} on,"
            )
        self._notes[kind] = omitted.notes()
        if kind is EntryKind.TOOL:
            self._omitted = omitted.tools
        return tuple(found[: limits.tools_per_upstream])

    async def _read(self, kind: EntryKind, listed: Raw, found: list[CatalogEntry], omitted: _Omitted) -> None:
        """Add the usable entries of one page to `found`, up to one more than the limit: the extra entry shows that the limit is
        exceeded. Only entries that are too deep or too large are omitted.
        """
        server, read_bytes, faults = self._link.server, 0, 0
        room = self._limits.tools_per_upstream + 1 - len(found)
        for number, raw in enumerate((await _elements(listed))[:room], 1):
            text = bytes(raw)
            entry = self._unchanged(kind, text)
            if entry is None and not reads_quickly(text):
                omitted.entry(await _name(kind, text), TOO_LARGE)
                continue
            try:
                entry = entry or read_entry(kind, server, raw, self._limits.json_depth)
            except wire.BeyondLimits as problem:
                omitted.entry(await _name(kind, text), problem.reason)
                continue
            if entry is not None and omitted.is_first(entry.name):
                found.append(entry)
            elif entry is not None:
                omitted.twice(entry.name)
            elif kind is EntryKind.SKILL and faults < MAX_FAULTS:
                faults += 1
                omitted.note(f"A skill of {server} is skipped: {skill_fault(raw)}")
            read_bytes += len(raw)
            if number % PORTION == 0 or read_bytes > PORTION_BYTES:
                read_bytes = 0
                await let_others_run()

    def _unchanged(self, kind: EntryKind, text: bytes) -> CatalogEntry | None:
        """Return the known entry with these bytes, unless it may exceed the current nesting limit."""
        if not self._known or text.count(b"{") + text.count(b"[") > self._limits.json_depth:
            return None
        return self._known.get((kind, text))

    async def _page(self, method: str, cursor: Raw | None) -> Members:
        params: Members = {"cursor": cursor} if cursor is not None else {}
        request = own_call(
            method, params, LISTING_PROFILE, self._limits.tools_fetch_timeout_ms / 1000, read_in_parts=True
        )
        reply = await self._link.request(request)
        if isinstance(reply, ErrorReply):
            if reply.code == _METHOD_NOT_FOUND:
                return {}
            text = wire.parse_strictly(reply.raw).get("message")
            raise UpstreamError(
                "upstream_unreachable", f"The server {self._link.server} could not answer {method}: {str(text)[:200]}"
            )
        members = await _members(reply.raw)
        if "ttlMs" in members and bytes(members["ttlMs"]).isdigit():
            self._ttls.append(float(bytes(members["ttlMs"])))
        return members


def _first_page_too_large(server: str, method: str, limits: Limits) -> str:
    return (
        f"The first page of {method} of the server {server} exceeds {limits.result_bytes} bytes (limits.result_bytes). Raise the "
        "limit, or configure the server to return smaller pages."
    )


class _Omitted:
    """The entries of one list beyond a limit, and the log notes about them."""

    def __init__(self, kind: EntryKind, server: str) -> None:
        self._what = kind.value
        self._list = f"{LISTS[kind].method} of {server}"
        self._entries: list[str] = []
        self._rest: list[str] = []
        self._unnamed = 0
        self._names: set[str] = set()
        self._twice: dict[str, None] = {}
        self.tools = NOTHING_OMITTED

    def is_first(self, name: str) -> bool:
        """Return whether the list has not had this name before. Two definitions of one name would differ from its pin by turns."""
        known = len(self._names)
        self._names.add(name)
        return len(self._names) > known

    def twice(self, name: str) -> None:
        if len(self._twice) < NAMED_IN_NOTES:
            self._twice[name] = None

    def entry(self, name: str | None, why: str) -> None:
        self.tools = self.tools.with_names((name,)) if name is not None else self.tools
        if len(self._entries) < NAMED_IN_NOTES:
            self._entries.append(f"{self._list}: the {self._what} {str(name)[:80]!r} is omitted, because {why}")
        else:
            self._unnamed += 1

    def rest(self, why: str) -> None:
        """Note that the list was not fetched completely."""
        self.tools = OmittedTools(self.tools.names, cut=True)
        self._rest.append(f"{self._list} {why} is omitted")

    def note(self, text: str) -> None:
        self._rest.append(text)

    def notes(self) -> list[str]:
        more = [f"{self._list}: {self._unnamed} more are too deep or too large"] if self._unnamed else []
        twice = [
            f"{self._list}: the {self._what} {name[:80]!r} is listed twice; the first one is used"
            for name in self._twice
        ]
        return [*self._entries, *more, *twice, *self._rest]


async def _members(result: bytes) -> Members:
    """Return the members of a result, regardless of their depth."""
    try:
        return await members_of(result)
    except (wire.BeyondLimits, RecursionError):
        return await members_of_any_depth(result)


async def _elements(listed: Raw) -> list[Raw]:
    try:
        return await elements_of(listed)
    except (wire.BeyondLimits, RecursionError):
        return await elements_of_any_depth(bytes(listed))


async def _name(kind: EntryKind, text: bytes) -> str | None:
    """Return the name of an entry that is not parsed as a whole."""
    members = await members_of_any_depth(text)
    short = {key: value for key, value in members.items() if len(value) <= LONGEST_NAME_BYTES}
    return name_in(
        kind, {key: wire.parse_strictly(bytes(value)) for key, value in short.items() if bytes(value)[:1] == b'"'}
    )
