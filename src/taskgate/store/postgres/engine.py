"""How the PostgreSQL store writes, reads and measures time, for `store.open_store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DeferredWrite, Revert, Write
from taskgate.store.locks import Locks
from taskgate.store.postgres.committer import Committer
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.readers import Readers
from taskgate.store.postgres.result_chunks import ResultChunks
from taskgate.store.postgres.wakeups import Wakeups
from taskgate.store.postgres.writer import Writer
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState

T = TypeVar("T")


class PostgresEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        *,
        state: StoreState,
        committer: Committer,
        readers: Readers,
        presence: Presence,
        wakeups: Wakeups,
        sealing: Sealing,
    ) -> None:
        self.sealing = sealing
        self.state = state
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
    def can_rejoin(self) -> bool:
        return True

    def now_ms(self) -> int:
        return self.presence.now_ms()

    def may_send(self) -> bool:
        return self.presence.is_fresh

    @property
    def problem(self) -> str | None:
        return self.writer.problem or self.presence.problem

    async def write(self, operation: Write[T], locks: Locks, revert: Revert | None = None) -> T:
        return await self.writer.write(operation, revert, locks)

    async def read(self, query: Callable[[Reader], T]) -> T:
        return await self.readers.read(query, self.now_ms, self.ownership)

    async def read_in_thread(self, query: Callable[[Reader], T]) -> T:
        return await self.readers.read(query, self.now_ms, self.ownership)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        """Nothing to do: the server reclaims deleted rows by vacuum, and its log and backups have their own retention."""

    async def close(self) -> None:
        await self.writer.stop()
        self.state.restore.release()
        await asyncio.to_thread(self.presence.end)
        await asyncio.to_thread(self.readers.close)
