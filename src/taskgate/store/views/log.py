"""The view of a store that keeps events (`ports.event_outbox`) and the audit log (`ports.audit_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.ports.audit_log import AuditTime, ChainEnd
from taskgate.ports.event_outbox import EventPage, StoredEvent
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.locks import Locks
from taskgate.store.operations.audit import record_audit
from taskgate.store.operations.events import append_event, move_cursor
from taskgate.store.views.base import StoreView
from taskgate.store.views.engine import Engine
from taskgate.store.views.latest_wins import LatestWins


class LogView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._cursors: LatestWins[int] = LatestWins(self._defer, move_cursor, lambda caller: Locks(callers=(caller,)))

    def keep_events(self, maximum: int, for_ms: int) -> None:
        self._engine.settings.keep_events(maximum, for_ms)

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        return await self._write_or_fault(
            lambda tx: append_event(tx, caller, kind, server, data), Locks(callers=(caller,))
        )

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        now = self.now_ms()
        return await self._read(lambda reader: reader.events_after(caller, number, limit, now))

    async def streams_of(self, caller: str) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.streams_of(caller))

    async def cursor(self, caller: str) -> int:
        _, delivered = await self._read(lambda reader: reader.stream(caller))
        return max(self._cursors.peek(caller) or 0, delivered)

    def move_cursor(self, caller: str, number: int) -> None:
        if number > (self._cursors.peek(caller) or 0):
            self._cursors.put(caller, number)

    def record(self, entry: AuditEntry) -> None:
        self._defer(DeferredWrite(lambda tx: record_audit(tx, entry)))

    async def recorded(self) -> None:
        await self._write(lambda _tx: None)  # Deferred writes are part of the next commit.

    async def record_now(self, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: record_audit(tx, entry))

    @property
    def audit_chain(self) -> str:
        return ""

    async def begin_chain(self) -> None:
        """Nothing to do: one chain continues over all starts."""

    async def chain_ends(self) -> tuple[ChainEnd, ...]:
        number, _ = await self._read(lambda reader: reader.audit_head())
        times = await self.audit_times(number - 1, 1) if number else ()
        return tuple(ChainEnd("", 0, time.number, time.at_ms) for time in times)

    async def ended_chains(self) -> tuple[str, ...]:
        return ()

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        return await self._read(lambda reader: reader.audit_rows(after, limit))

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        counted = self._engine.settings.deletion.counted  # mostly read by retention
        return await self._read(counted(lambda reader: reader.audit_times(after, limit)))

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        await self._delete(lambda tx: tx.run("forget_audit", number=up_to).rowcount)
