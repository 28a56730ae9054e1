"""How the PostgreSQL store writes, reads and measures time, for the views that every store shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DeferredWrite, Operation, Revert
from taskgate.store.locks import Locks
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.restored import RestoreState
from taskgate.store.postgres.committer import Committer
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.readers import Readers
from taskgate.store.postgres.result_chunks import ResultChunks
from taskgate.store.postgres.wakeups import Wakeups
from taskgate.store.postgres.writer import Writer
from taskgate.store.sealing import Sealing
from taskgate.store.transaction_settings import TransactionSettings

T = TypeVar("T")


class PostgresEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        *,
        settings: TransactionSettings,
        committer: Committer,
        readers: Readers,
        presence: Presence,
        wakeups: Wakeups,
        sealing: Sealing,
        restore: RestoreState,
    ) -> None:
        self.sealing = sealing
        self.restore = restore
        self.settings = settings
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

    async def write(self, operation: Operation[T], locks: Locks, revert: Revert | None = None) -> T:
        return await self.writer.write(operation, revert, locks)

    async def read(self, query: Callable[[Reader], T]) -> T:
        return await self.readers.read(query)

    async def read_in_thread(self, query: Callable[[Reader], T]) -> T:
        return await self.readers.read(query)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        """Nothing to do: the server reclaims deleted rows by vacuum, and its log and backups have their own retention."""

    async def close(self) -> None:
        await self.writer.stop()
        self.restore.release()
        await asyncio.to_thread(self.presence.end)
        await asyncio.to_thread(self.readers.close)
