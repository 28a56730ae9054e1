"""How the PostgreSQL store writes, reads and keeps time, for the views that every store shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import DeferredWrite, Operation, TakeBack
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.transaction import KeptEvents, Locks
from taskgate.store.postgres.chunks import ResultChunks
from taskgate.store.postgres.commit import Committer
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.readers import Readers
from taskgate.store.postgres.wakeups import Wakeups
from taskgate.store.postgres.writer import Writer
from taskgate.store.sealing import Sealing

T = TypeVar("T")


class PostgresEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        kept_events: KeptEvents,
        committer: Committer,
        readers: Readers,
        presence: Presence,
        wakeups: Wakeups,
        sealing: Sealing,
    ) -> None:
        self.sealing = sealing
        self.kept_events = kept_events
        self.presence = presence
        self.wakeups = wakeups
        self.committer = committer
        self.writer = Writer(committer)
        self.readers = readers
        self.large_results = ResultChunks(readers, presence.now_ms)

    @property
    def ownership(self) -> Ownership:
        return self.presence.ownership

    @property
    def comes_back(self) -> bool:
        return True

    def now_ms(self) -> int:
        return self.presence.now_ms()

    def may_send(self) -> bool:
        return self.presence.is_fresh

    @property
    def trouble(self) -> str | None:
        return self.writer.trouble or self.presence.trouble

    async def write(self, operation: Operation[T], locks: Locks, take_back: TakeBack | None = None) -> T:
        return await self.writer.write(operation, locks, take_back)

    async def read(self, ask: Callable[[Reader], T]) -> T:
        return await self.readers.read(ask)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        """The server keeps its files: its vacuum frees the pages, and its log and backups have their own times."""

    async def close(self) -> None:
        await self.writer.stop()
        await asyncio.to_thread(self.presence.end)
        await asyncio.to_thread(self.readers.close)
