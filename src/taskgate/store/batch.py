"""One write transaction as the operations see it, what shares a commit with it, and the SQL that it runs by name."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.core.identity import tenant_of
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


class Transaction(ABC):
    """What an operation may do. Lives only inside one BEGIN and COMMIT."""

    __slots__ = ("_revisions", "_stale", "audit_head", "kept_events", "most_open", "now_ms", "ownership", "sealing")
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
        self._revisions: dict[str, int] | None = None

    @abstractmethod
    def run(self, name: str, /, **values: Any) -> Rows: ...

    def put(self, name: str, /, **values: Any) -> None:
        """Insert a row that cannot be there yet. Several of one kind may be sent together, before the next statement runs."""
        self.run(name, **values)

    def changes_one(self, name: str, /, **values: Any) -> bool:
        """Run a statement that is meant to change exactly one row; False if it did not."""
        return self.run(name, **values).rowcount == 1

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
            found = self.run("find_owner", owner=self.ownership.owner).fetchone()
            self._stale = found is None or found[0] != self.ownership.fence or bool(found[1])
        return self._stale

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


class Waiting:
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
        if not self.future.cancelled():
            self.value = self.operation(transaction)

    def ended(self, failure: BaseException | None) -> None:
        """It ran, or could not; whoever waits is told by `settle`."""
        self.failure = failure

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

    waiting: list[Waiting]
    deferred: list[DeferredWrite]


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
