"""The part of the SQLite store that keeps events and the audit trail (`ports.event_outbox`, `ports.audit_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core.audit import Entry, Row
from taskgate.ports.event_outbox import EventPage, StoredEvent
from taskgate.store.sqlite.batch import RideAlong
from taskgate.store.sqlite.foundation import Foundation
from taskgate.store.sqlite.latest_wins import LatestWins
from taskgate.store.sqlite.transaction import Transaction


def _write_cursor(tx: Transaction, caller: str, number: int) -> None:
    tx.run("move_cursor", caller=caller, number=number, now_ms=tx.now_ms)


class LogSide(Foundation):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._cursors: LatestWins[int] = LatestWins(self._ride_along, _write_cursor)

    def keep_events(self, most: int, for_ms: int) -> None:
        self._kept_events.most, self._kept_events.for_ms = most, for_ms

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        return await self._write_or_fault(lambda tx: tx.tell(caller, kind, server, data))

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        return self._reader.events_after(caller, number, limit, self.now_ms())

    async def event_number(self, caller: str, event_id: str) -> int | None:
        return self._reader.event_number(caller, event_id)

    async def cursor(self, caller: str) -> int:
        return max(self._cursors.peek(caller) or 0, self._reader.stream(caller)[1])

    def move_cursor(self, caller: str, number: int) -> None:
        if number > (self._cursors.peek(caller) or 0):
            self._cursors.put(caller, number)

    def record(self, entry: Entry) -> None:
        self._ride_along(RideAlong(lambda tx: tx.record(entry)))

    async def record_now(self, entry: Entry) -> None:
        await self._write_or_fault(lambda tx: tx.record(entry))

    async def audit_rows(self, after: int = 0, limit: int = 1_000) -> tuple[Row, ...]:
        return self._reader.audit_rows(after, limit)

    def audit_head(self) -> tuple[int, str]:
        return self._reader.audit_head()

    async def forget_audit(self, up_to: int) -> None:
        await self._write_or_fault(lambda tx: tx.run("forget_audit", number=up_to).rowcount)
