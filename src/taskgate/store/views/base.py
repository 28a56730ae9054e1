"""What the views of a store share, and the view that keeps events and the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.grants import Grant
from taskgate.ports.store import AuditTime
from taskgate.ports.store_answers import EventPage, Ownership, StaleOwner, StoredEvent
from taskgate.store.batch_writer import DeferredWrite, Operation, Revert
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.restored import RestoreState
from taskgate.store.operations.rows import move_cursor, record_audit, tell_event
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import NO_LOCKS, KeptEvents, Locks, Transaction

T = TypeVar("T")

COMES_BACK_TRIES: Final = 40
COMES_BACK_PAUSE_S: Final = 0.25


class LargeResults(Protocol):
    """Where results are kept that are too long for a row: durable before the commit that names them."""

    async def write(self, task_id: str, body: bytes) -> str:
        """Make the bytes durable; gives the name under which to find them."""
        ...

    async def read(self, name: str) -> bytes: ...

    async def remove(self, names: list[str]) -> int: ...

    async def remove_orphans(self) -> int:
        """Remove those that no task names, if they are so old that no write can still be on its way."""
        ...


class Engine(Protocol):
    """How an adapter writes, reads and keeps time."""

    @property
    def ownership(self) -> Ownership: ...

    @property
    def kept_events(self) -> KeptEvents: ...

    @property
    def large_results(self) -> LargeResults: ...

    @property
    def sealing(self) -> Sealing: ...

    @property
    def restore(self) -> RestoreState: ...

    @property
    def comes_back(self) -> bool:
        """Whether one that was taken for dead goes on in a moment, under a new fence."""
        ...

    def now_ms(self) -> int: ...

    def may_send(self) -> bool:
        """Whether we certainly still are who our ownership says: looked at before something is sent in its name."""
        ...

    async def write(self, operation: Operation[T], locks: Locks, revert: Revert | None = None) -> T:
        """Run the operation in the next commit and return its value once that commit is durable.

        `revert` is used if the commit becomes durable after the caller has stopped waiting.
        """
        ...

    async def read(self, ask: Callable[[Reader], T]) -> T: ...

    def defer(self, write: DeferredWrite) -> None:
        """Write with the next commit, without anybody waiting."""
        ...

    async def overwrite_deleted(self) -> None:
        """Return when deleted rows can no longer be read from the store's own files."""
        ...


class StoreView:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.known_grants: tuple[Grant, ...] = ()
        """The grants that stand, as they were last read; read again inside each intent where others can change them."""

    @property
    def ownership(self) -> Ownership:
        return self._engine.ownership

    def now_ms(self) -> int:
        return self._engine.now_ms()

    async def _read(self, ask: Callable[[Reader], T]) -> T:
        return await self._engine.read(ask)

    async def _write(
        self, operation: Operation[T], locks: Locks = NO_LOCKS, revert: Revert | None = None
    ) -> T | StaleOwner:
        """Run the operation if we still own the store; see `Engine.write`."""

        def guarded(tx: Transaction) -> T | StaleOwner:
            return StaleOwner(tx.ownership) if tx.is_stale() else operation(tx)

        return await self._engine.write(guarded, locks, revert)

    async def _write_or_fault(self, operation: Operation[T], locks: Locks = NO_LOCKS) -> T:
        """For writes whose answer has no room for `StaleOwner`. They are of no task, so they are ours under any fence."""
        answer = await self._write(operation, locks)
        tries = COMES_BACK_TRIES if self._engine.comes_back else 0
        while isinstance(answer, StaleOwner) and tries:
            await clock.sleep(COMES_BACK_PAUSE_S)
            answer, tries = await self._write(operation, locks), tries - 1
        if isinstance(answer, StaleOwner):
            raise GatewayFault("store_unavailable", "Another Taskgate has taken over this store; this one must stop.")
        return answer

    def _defer(self, write: DeferredWrite) -> None:
        def guarded(tx: Transaction) -> None:
            if not tx.is_stale():
                write.write(tx)

        self._engine.defer(DeferredWrite(guarded, write.committed, write.locks))


# Values that wait to be written, where only the latest of each key matters: progress of a task, cursor of a caller.
#
# A value stays visible here until the commit that holds it, so a reader never sees it go backwards.

V = TypeVar("V")


class LatestWins(Generic[V]):
    """`queue` hands a deferred write to the writer; `write` writes one value, and `locks` says what of."""

    def __init__(
        self,
        queue: Callable[[DeferredWrite], None],
        write: Callable[[Transaction, str, V], None],
        locks: Callable[[str], Locks],
    ) -> None:
        self._queue = queue
        self._write = write
        self._locks = locks
        self._waiting: dict[str, V] = {}

    def peek(self, key: str) -> V | None:
        return self._waiting.get(key)

    def put(self, key: str, value: V) -> None:
        is_queued = key in self._waiting
        self._waiting[key] = value
        if not is_queued:
            self._queue(self._deferred_write(key))

    def _deferred_write(self, key: str) -> DeferredWrite:
        written: list[V] = []

        def write(tx: Transaction) -> None:
            written[:] = [self._waiting[key]]
            self._write(tx, key, written[0])

        def committed() -> None:
            if not written or self._waiting[key] is written[0]:
                del self._waiting[key]
            else:
                self._queue(self._deferred_write(key))

        return DeferredWrite(write, committed, self._locks(key))


# The view of a store that keeps events and the audit trail (`ports.store_answers`, `ports.audit_log`).


class LogView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._cursors: LatestWins[int] = LatestWins(self._defer, move_cursor, lambda caller: Locks(callers=(caller,)))

    def keep_events(self, most: int, for_ms: int) -> None:
        self._engine.kept_events.keep(most, for_ms)

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        return await self._write_or_fault(
            lambda tx: tell_event(tx, caller, kind, server, data), Locks(callers=(caller,))
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
        """One chain for all starts: it goes on."""

    async def ended_chains(self) -> tuple[str, ...]:
        return ()

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        return await self._read(lambda reader: reader.audit_rows(after, limit))

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        return await self._read(lambda reader: reader.audit_times(after, limit))

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        await self._write_or_fault(lambda tx: tx.run("forget_audit", number=up_to).rowcount)
