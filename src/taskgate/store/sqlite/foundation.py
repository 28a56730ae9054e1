"""What the parts of the SQLite store share: the writer, the reader, the clock, and the rule about stale owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership, StaleOwner
from taskgate.store.sqlite.batch import Operation, RideAlong, TakeBack
from taskgate.store.sqlite.kept_events import KeptEvents
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.reader import Reader
from taskgate.store.sqlite.spill_files import SpillFiles
from taskgate.store.sqlite.transaction import Transaction
from taskgate.store.sqlite.writer import Writer

T = TypeVar("T")


class Foundation:
    """Built by `open_store`; the parts inherit from it."""

    def __init__(
        self,
        writer: Writer,
        reader: Reader,
        spill_files: SpillFiles,
        clock: Callable[[], int],
        ownership: Ownership,
        kept_events: KeptEvents,
        last_known: LastKnown,
    ) -> None:
        self._last_known = last_known
        self._writer = writer
        self._reader = reader
        self._spill_files = spill_files
        self._clock = clock
        self._ownership = ownership
        self._kept_events = kept_events

    @property
    def ownership(self) -> Ownership:
        return self._ownership

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written just now: the disk refuses, or the store belongs to somebody else."""
        try:
            if not self._reader.is_current(self._ownership):
                return "another Taskgate has taken over this store; this one must stop"
        except GatewayFault as fault:
            return fault.message
        return self._writer.trouble

    @property
    def is_restored(self) -> bool:
        """The database is older than what this installation last wrote: it was put back from a backup."""
        return self._last_known.is_ahead

    async def accept_restored(self) -> None:
        def last_row(tx: Transaction) -> int:
            found = tx.run("last_audit").fetchone()
            return found[0] if found is not None else 0

        self._last_known.start_over(await self._write_or_fault(last_row))

    @property
    def is_committing(self) -> bool:
        """Whether a commit is on its way to the disk."""
        return self._writer.is_committing

    def now_ms(self) -> int:
        return self._clock()

    async def _write(self, operation: Operation[T], take_back: TakeBack | None = None) -> T | StaleOwner:
        """Run the operation if we still own the store; see `Writer.write`."""

        def guarded(tx: Transaction) -> T | StaleOwner:
            return StaleOwner(tx.ownership) if tx.is_stale() else operation(tx)

        return await self._writer.write(guarded, take_back)

    async def _write_or_fault(self, operation: Operation[T]) -> T:
        """For writes whose answer has no room for `StaleOwner`."""
        answer = await self._write(operation)
        if isinstance(answer, StaleOwner):
            raise GatewayFault("store_unavailable", "Another Taskgate has taken over this store; this one must stop.")
        return answer

    def _ride_along(self, rider: RideAlong) -> None:
        def guarded(tx: Transaction) -> None:
            if not tx.is_stale():
                rider.write(tx)

        self._writer.ride_along(RideAlong(guarded, rider.committed))
