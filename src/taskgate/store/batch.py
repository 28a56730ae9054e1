"""One write transaction as the operations see it, what shares a commit with it, and the SQL that it runs by name."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.core.identity.identity import tenant_of
from taskgate.ports.store_answers import KEPT_EVENTS, KEPT_EVENTS_MS, Ownership
from taskgate.store.sealing import Sealing

# One write transaction as the operations see it: named statements, the time, and in whose name.
#
# Each adapter has its own, made once per group commit. The time is read once, so everything in it happened at the same
# moment. Statements are known by name and take their values by name; every adapter has the same names with the same
# meaning, in its own SQL.
#
# An operation says beforehand what it is about to read and change (`Locks`), for databases that several gateways write
# to at once. An adapter whose database has one writer need not look at it. The others lock what the operations of one
# transaction name, all at once and in one order, before the first of them runs: then what an operation reads stays true
# until its commit, and two transactions never wait for each other in a circle.


class Locks(NamedTuple):
    """A task stands for its approval, its questions and its caller's events too; an approval for its task."""

    tasks: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    """Whose events are appended to."""
    limits: tuple[str, ...] = ()
    """Whose open tasks and approvals are counted."""
    names: tuple[str, ...] = ()
    """Anything else that is known by a name: idempotency keys, grants, secrets."""
    reads: tuple[str, ...] = ()
    """Those of the tasks that will be read: an adapter may read them all at once. A new task is not among them."""


NO_LOCKS: Final = Locks()


def tenants_of(callers: tuple[str, ...]) -> tuple[str, ...]:
    """The names under which the open tasks and approvals of these callers' tenants are counted."""
    return tuple(f"tenant {tenant}" for tenant in dict.fromkeys(map(tenant_of, callers)) if tenant)


class KeptEvents:
    """Changed on the event loop and read by the committing thread too, one number at a time."""

    __slots__ = ("for_ms", "most")

    def __init__(self, most: int = KEPT_EVENTS, for_ms: int = KEPT_EVENTS_MS) -> None:
        self.keep(most, for_ms)

    def keep(self, most: int, for_ms: int) -> None:
        self.most = most
        self.for_ms = for_ms


class Rows(Protocol):
    """What a statement answers."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Runs a named statement."""

    def __call__(self, name: str, /, **values: Any) -> Rows: ...


_IDS_AT_ONCE: Final = 32


class Transaction(ABC):
    """What an operation may do. Lives only inside one BEGIN and COMMIT."""

    __slots__ = (
        "_random",
        "_revisions",
        "_stale",
        "audit_head",
        "kept_events",
        "most_open",
        "now_ms",
        "ownership",
        "sealing",
    )
    is_shared: ClassVar[bool]
    """Whether other gateways write to the same database."""

    def __init__(self, now_ms: int, ownership: Ownership, kept_events: KeptEvents, sealing: Sealing) -> None:
        self.sealing = sealing
        self.now_ms = now_ms
        self.ownership = ownership
        self.kept_events = kept_events
        self.audit_head: tuple[int, str] | None = None
        """Number and hash of the last audit row, once this transaction has looked; see `operations.audit`."""
        self.most_open: dict[str, int] = {}
        """How many open tasks somebody has at the most, where that was counted in this transaction."""
        self._stale: bool | None = None
        self._random = b""
        self._revisions: dict[str, int] | None = None

    @abstractmethod
    def run(self, name: str, /, **values: Any) -> Rows: ...

    def put(self, name: str, /, **values: Any) -> None:
        """Insert a row that cannot be there yet. Several of one kind may be sent together, before the next statement runs."""
        self.run(name, **values)

    def queue(self, name: str, /, **values: Any) -> None:
        """Run a write whose result nothing depends on. Several may be sent together, before the next statement that reads."""
        self.run(name, **values)

    def changes_one(self, name: str, /, **values: Any) -> bool:
        """Run a statement that is meant to change exactly one row; False if it did not."""
        return self.run(name, **values).rowcount == 1

    def change_each(self, name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
        """The same for each of these values; False if one of them changed nothing."""
        changed = [self.changes_one(name, **values) for values in rows]
        return all(changed)

    def task_row(self, task_id: str) -> Any:
        """The row of a task with its arguments, or None."""
        return self.run("find_task", id=task_id).fetchone()

    def next_event_number(self, caller: str) -> int:
        """The next number of a caller's events, which is ours from now on until the commit."""
        number: int = self.run("next_event_number", caller=caller, now_ms=self.now_ms).fetchone()[0]
        return number

    @abstractmethod
    def announce(self, topic: str, name: str) -> None:
        """Tell other gateways on the same store, with the commit, that they should look at this again."""

    def is_stale(self) -> bool:
        """Whether another owner has taken over since we started."""
        if self._stale is None:
            found = self._find_owner()
            self._stale = found is None or found[0] != self.ownership.fence or bool(found[1])
        return self._stale

    def random_bytes(self, count: int) -> bytes:
        """Random bytes for ids, read from the system many at a time: each read releases the interpreter's lock."""
        if len(self._random) < count:
            self._random = secrets.token_bytes(count * _IDS_AT_ONCE)
        taken, self._random = self._random[:count], self._random[count:]
        return taken

    def _find_owner(self) -> Any:
        return self.run("find_owner", owner=self.ownership.owner).fetchone()

    def revisions(self) -> Mapping[str, int]:
        """The revisions of what gateways keep in memory; only where `is_shared`."""
        if self._revisions is None:
            self._revisions = dict(self.run("revisions").fetchall())
        return self._revisions

    @property
    def audit_number(self) -> int:
        """The number of the last audit row, if this transaction has written one; else 0."""
        return self.audit_head[0] if self.audit_head is not None else 0

    def audited(self, number: int, digest: str) -> None:
        """This is the last audit row now, as far as this transaction knows."""
        self.audit_head = (number, digest)

    def forget_head(self) -> None:
        """After a rollback to a savepoint the remembered end of the audit chain may never have been written."""
        self.audit_head = None


T = TypeVar("T")
Operation = Callable[[Transaction], T]
TakeBack = Callable[[Any], Operation[None] | None]


class DeferredWrite(NamedTuple):
    """A write that nobody waits for; `committed` is told when it is on the disk."""

    write: Callable[[Transaction], None]
    committed: Callable[[], None] | None = None
    locks: Locks = NO_LOCKS


class QueuedOperation:
    """An operation and the future of whoever waits for it."""

    __slots__ = ("failure", "future", "is_committed", "is_given_up", "locks", "operation", "take_back", "value")

    def __init__(
        self,
        operation: Operation[Any],
        future: asyncio.Future[Any],
        take_back: TakeBack | None = None,
        locks: Locks = NO_LOCKS,
    ) -> None:
        self.operation = operation
        self.future = future
        self.take_back = take_back
        self.locks = locks
        self.is_committed = False
        self.is_given_up = False
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self, transaction: Transaction) -> None:
        if not self.future.done():
            self.value = self.operation(transaction)

    def ended(self, failure: BaseException | None) -> None:
        """It ran, or could not; whoever waits is told by `settle`."""
        self.failure = failure

    def run_out_of_time(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError())

    def give_up(self) -> bool:
        """Nobody will hear the answer. Whether it is there already."""
        self.is_given_up = True
        return self.is_committed

    def settle(self) -> None:
        self.is_committed = self.failure is None
        if self.future.done():
            return
        if self.failure is not None:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self.value)


class Batch(NamedTuple):
    """What shares one commit."""

    waiting: list[QueuedOperation]
    deferred: list[DeferredWrite]


MAX_WAITING: Final = 20_000
MAX_DEFERRED: Final = 20_000
RIDE_ALONG_DELAY_S: Final = 0.25
RETRY_S: Final = 0.5
SWITCH_INTERVAL_S: Final = 0.00005


class BatchWriter(ABC):
    """The event loop's side of a writer, the same for every database: gathers what waits into batches, answers when a commit is
    durable and never before, and takes back what was committed after all when nobody waits for it any more."""

    answer_within_s: ClassVar[float]
    medium: ClassVar[str]
    """What may keep everybody waiting, in the words of the failure."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedOperation] = deque()
        self._deferred: deque[DeferredWrite] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._is_stopping = False
        self._idle: asyncio.Future[None] | None = None
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        return self._trouble

    @property
    def is_committing(self) -> bool:
        """From the beginning of a batch until its outcome is back on the loop; a test's clock stands still so long."""
        return self._is_busy

    def start(self) -> None:
        # A busy event loop lets go of the interpreter's lock for moments only. The committing thread must ask for it
        # sooner than such a moment comes, or it loses the race for it again and again, for seconds.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    async def _write_the_last(self, within_s: float) -> None:
        """Write what waits, once, and take nothing more."""
        self._is_stopping = True
        loop = self._bind()
        if self._is_busy or self._waiting or self._deferred:
            self._idle = loop.create_future()
            self._go_on()
            await asyncio.wait([self._idle], timeout=within_s)
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, operation: Operation[T], take_back: TakeBack | None = None, locks: Locks = NO_LOCKS) -> T:
        """Run the operation in the next commit and return its value once that commit is durable.

        `take_back` says how to undo it, given its value, if it is durable after all when whoever waited has given up.
        """
        self._refuse_more()
        loop = self._bind()
        waiting = QueuedOperation(operation, loop.create_future(), take_back, locks)
        self._waiting.append(waiting)
        self._go_on()
        timer = loop.call_later(self.answer_within_s, waiting.run_out_of_time)
        try:
            value: T = await waiting.future
            return value
        except (TimeoutError, asyncio.CancelledError) as reason:
            self._give_up(waiting)
            if isinstance(reason, TimeoutError):
                raise unavailable(f"{self.medium} did not answer in time") from None
            raise
        finally:
            timer.cancel()

    def _refuse_more(self) -> None:
        """Raises GatewayFault if another write would wait for nothing."""
        if self._is_stopping or len(self._waiting) >= MAX_WAITING:
            raise GatewayFault("store_unavailable", "The store takes no more writes just now. Try again soon.")

    def _give_up(self, waiting: QueuedOperation) -> None:
        """Nobody will hear the answer. If it is there already it is taken back now, else when it comes."""
        if waiting.give_up():
            self._take_back(waiting)

    def _take_back(self, waiting: QueuedOperation) -> None:
        undo = waiting.take_back(waiting.value) if waiting.take_back is not None else None
        if undo is not None:
            self.defer(DeferredWrite(undo, None, waiting.locks))

    def defer(self, write: DeferredWrite) -> None:
        """Write soon, without anybody waiting."""
        if len(self._deferred) >= MAX_DEFERRED:
            raise unavailable("too much is waiting to be written")
        self._bind()
        self._deferred.append(write)
        self._look_again_in(RIDE_ALONG_DELAY_S)

    def _bind(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _go_on(self) -> None:
        """Begin the next batch in the next turn of the loop, so that writes of the same turn share it."""
        if not self._is_busy:
            self._is_busy = True
            self._bind().call_soon(self._run_batch)

    @abstractmethod
    def _run_batch(self) -> None:
        """Carry out what waits; `_over` is told how it went."""

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._bind().call_later(seconds, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        if self._deferred or self._trouble is not None:
            self._go_on()

    def _tell_loop(self, what: Callable[..., None], *values: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *values)

    def _over(self, batch: Batch, trouble: str | None) -> None:
        """Back on the loop: the commit is durable, or it is not and never was."""
        self._trouble = trouble
        if trouble is None:
            for write in batch.deferred:
                if write.committed is not None:
                    write.committed()
        else:
            self._deferred.extendleft(reversed(batch.deferred))
            for waiting in batch.waiting:
                waiting.ended(unavailable(trouble))
            self._look_again_in(RETRY_S)
        for waiting in batch.waiting:
            waiting.settle()
            if waiting.is_committed and waiting.is_given_up:
                self._take_back(waiting)
        self._is_busy = False
        if self._has_more() or (self._is_stopping and self._deferred and trouble is None):
            self._go_on()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _has_more(self) -> bool:
        return bool(self._waiting)


def unavailable(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable", f"The store cannot be written to: {why}. Nothing was accepted; try again later."
    )


# Loads the SQL of an adapter from the `.sql` files in its folder: statements by name, and migrations by number.

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def read_queries(package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    folder = files(package).joinpath("queries")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two queries are called {name}")
            found[name] = text.strip().rstrip(";")
    return found


def read_migrations(package: str) -> list[tuple[int, str]]:
    """Number and text of every migration, in order."""
    folder = files(package).joinpath("migrations")
    found = sorted((int(entry.name[:4]), entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError("the migrations are not numbered 1, 2, 3, ...")
    return found
