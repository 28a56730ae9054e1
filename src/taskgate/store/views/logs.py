"""The view of a store that keeps events and the audit trail (`ports.store_answers`, `ports.audit_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core.audit import AuditEntry, Row
from taskgate.ports.store_answers import EventPage, StoredEvent
from taskgate.store.batch import DeferredWrite
from taskgate.store.operations import audit, events
from taskgate.store.operations.transaction import Locks
from taskgate.store.views.base import Engine, StoreView
from taskgate.store.views.latest_wins import LatestWins


class LogView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._cursors: LatestWins[int] = LatestWins(
            self._defer, events.move_cursor, lambda caller: Locks(callers=(caller,))
        )

    def keep_events(self, most: int, for_ms: int) -> None:
        kept = self._engine.kept_events
        kept.most, kept.for_ms = most, for_ms

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        return await self._write_or_fault(
            lambda tx: events.tell(tx, caller, kind, server, data), Locks(callers=(caller,))
        )

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        now = self.now_ms()
        return await self._read(lambda reader: reader.events_after(caller, number, limit, now))

    async def streams_of(self, caller: str) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.streams_of(caller))

    async def event_number(self, caller: str, event_id: str) -> int | None:
        return await self._read(lambda reader: reader.event_number(caller, event_id))

    async def cursor(self, caller: str) -> int:
        _, delivered = await self._read(lambda reader: reader.stream(caller))
        return max(self._cursors.peek(caller) or 0, delivered)

    def move_cursor(self, caller: str, number: int) -> None:
        if number > (self._cursors.peek(caller) or 0):
            self._cursors.put(caller, number)

    def record(self, entry: AuditEntry) -> None:
        self._defer(DeferredWrite(lambda tx: audit.record(tx, entry)))

    async def record_now(self, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: audit.record(tx, entry))

    @property
    def audit_chain(self) -> str:
        return ""

    async def begin_chain(self) -> None:
        """One chain for all starts: it goes on."""

    async def ended_chains(self) -> tuple[str, ...]:
        return ()

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        return await self._read(lambda reader: reader.audit_rows(after, limit))

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        await self._write_or_fault(lambda tx: tx.run("forget_audit", number=up_to).rowcount)
