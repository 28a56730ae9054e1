"""Ask one upstream for all its lists, at the same time and each to its end, whatever becomes of the others.

A list that hangs holds up nobody: what has come after a moment is published, and the rest when it comes or has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind, read_entry, skill_fault
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.strict_scan import reads_quickly
from taskgate.core.wire import Members, Raw
from taskgate.gateway.catalog.offer import LISTS, Offer, has_list
from taskgate.gateway.plan import Limits
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.ports.upstream import LISTING_PROFILE, ErrorReply, Link, own_call
from taskgate.turns import PORTION, let_others_run

PUBLISH_AFTER_S: Final = 1.0
PORTION_BYTES: Final = 128 * 1024
"""Of definitions that are read in one go."""
MOST_FAULTS: Final = 10
"""Of entries of one page that are named in the log."""
_METHOD_NOT_FOUND: Final = -32601


async def fetch_lists(
    link: Link, limits: Limits, before: Offer | None, publish: Callable[[Offer], Awaitable[None]]
) -> Offer:
    """Everything the upstream offers now. Raises what went wrong if not a single one of its lists could be had.

    `publish` is given what there is after a moment, if by then some lists have come and others have not.
    """
    fetch = _Fetch(link, limits, before)
    try:
        if not await fetch.wait(PUBLISH_AFTER_S) and fetch.any_listed:
            await publish(fetch.offer())
        await fetch.wait(max(0.0, limits.tools_fetch_timeout_s - PUBLISH_AFTER_S))
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
        loop = asyncio.get_running_loop()
        self._running = {
            kind: loop.create_task(self._list(kind)) for kind in LISTS if has_list(link.capabilities, kind)
        }

    async def wait(self, seconds: float) -> bool:
        """Whether all lists have come or failed."""
        pending = [task for task in self._running.values() if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=seconds)
        return all(task.done() for task in self._running.values())

    @property
    def any_listed(self) -> bool:
        return any(task.done() and task.exception() is None for task in self._running.values())

    def offer(self, *, final: bool = False) -> Offer:
        """What has come so far; in the place of what has not, the entries of the time before."""
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
            entries,
            self._link.capabilities,
            self._link.instructions,
            self._link.generation,
            clock.wall_ms(),
            min(self._ttls) / 1000 if self._ttls else None,
            tuple(note for kind in LISTS for note in self._notes.get(kind, ())),
            failed,
            final,
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
        cursor: Raw | None = None
        seen: set[bytes] = set()
        for _ in range(limits.tools_max_pages):
            members = await self._page(how.method, cursor)
            if how.key in members:
                await self._read(kind, members[how.key], found)
            cursor = members.get("nextCursor")
            if cursor is None or bytes(cursor) in (b"null", b'""') or bytes(cursor) in seen:
                break
            if len(found) > limits.tools_per_upstream:
                break
            seen.add(bytes(cursor))
        else:
            self._note(
                kind, f"{how.method} of {server} has more than {limits.tools_max_pages} pages; the rest is left out"
            )
        if len(found) > limits.tools_per_upstream:
            most = limits.tools_per_upstream
            self._note(kind, f"{server} offers more than {most} in {how.method}; the rest is left out")
        return tuple(found[: limits.tools_per_upstream])

    async def _read(self, kind: EntryKind, listed: Raw, found: list[CatalogEntry]) -> None:
        """Add the usable entries of one page, one more than are shown at most, so that the limit is known to be met."""
        server, read_bytes, too_large, faults = self._link.server, 0, 0, 0
        room = self._limits.tools_per_upstream + 1 - len(found)
        for number, raw in enumerate((await elements_of(listed))[:room], 1):
            if not reads_quickly(bytes(raw)):
                too_large += 1
                continue
            entry = read_entry(kind, server, raw)
            if entry is not None:
                found.append(entry)
            elif kind is EntryKind.SKILL and faults < MOST_FAULTS:
                faults += 1
                self._note(kind, f"A skill of {server} is left out: {skill_fault(raw)}")
            read_bytes += len(raw)
            if number % PORTION == 0 or read_bytes > PORTION_BYTES:
                read_bytes = 0
                await let_others_run()
        if too_large:
            self._note(
                kind, f"{too_large} entries of {LISTS[kind].method} of {server} are too large; they are left out"
            )

    def _note(self, kind: EntryKind, note: str) -> None:
        self._notes.setdefault(kind, []).append(note)

    async def _page(self, method: str, cursor: Raw | None) -> Members:
        params: Members = {"cursor": cursor} if cursor is not None else {}
        request = own_call(method, params, LISTING_PROFILE, self._limits.tools_fetch_timeout_s)
        reply = await self._link.request(request)
        if isinstance(reply, ErrorReply):
            if reply.code == _METHOD_NOT_FOUND:
                return {}
            said = wire.parse_strictly(reply.raw).get("message")
            raise UpstreamError(
                "upstream_unreachable", f"The server {self._link.server} could not answer {method}: {str(said)[:200]}"
            )
        members = await members_of(reply.raw)
        if "ttlMs" in members and bytes(members["ttlMs"]).isdigit():
            self._ttls.append(float(bytes(members["ttlMs"])))
        return members
