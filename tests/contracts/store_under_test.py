"""What the contract suite needs from an adapter: a way to open a store, a settable clock, and calls to store."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.workflow import Workflow
from taskgate.core.ids import ulid
from taskgate.core.tasks.task import Task
from taskgate.ports.store import Store
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.sqlite import store as sqlite_store
from taskgate.store.transaction import Transaction

if TYPE_CHECKING:
    from taskgate.store.postgres.store import PostgresStore

START = 1_800_000_000_000
LISTENS_WITHIN_S = 60
ANN = Approver("ann", frozenset({"approver"}))
BOB = Approver("bob", frozenset({"approver"}))
OPS = Workflow("ops")


class OpenTasksOf(Query[int], frozen=True):
    """The number of open tasks of one caller."""

    caller: str

    def run(self, reader: Reader) -> int:
        return int(reader.run("count_open_of_caller", limited_as=self.caller).fetchone()[0])


class KeepSecret(Operation[bytes], frozen=True):
    """Store a value unless there is one of this name; return the stored value. The first gateway wins."""

    name: str
    value: bytes

    @property
    def locks(self) -> Locks:
        return Locks(names=(f"keep:{self.name}",))

    def run(self, tx: Transaction) -> bytes:
        tx.run("keep", name=self.name, value=self.value)
        kept: bytes = tx.run("kept", name=self.name).fetchone()[0]
        return kept


class TurnedClock:
    """A clock that changes only when a test sets it."""

    def __init__(self) -> None:
        self.now_ms = START

    def __call__(self) -> int:
        return self.now_ms

    def turn(self, ms: int) -> None:
        self.now_ms += ms


class StoreUnderTest(ABC):
    """Opens an adapter. A rival is a second owner on the same data, as after a failover: the first counts as dead."""

    def __init__(self) -> None:
        self.clock = TurnedClock()

    @abstractmethod
    def open(self, owner: str = "first") -> Store: ...

    @abstractmethod
    def open_rival(self, owner: str = "second") -> Store: ...

    @abstractmethod
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The result of a statement that another program runs on the database."""

    @abstractmethod
    def large_results(self) -> int:
        """How many long results are kept outside of the rows."""


class SqliteUnderTest(StoreUnderTest):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "store.db"

    def open(self, owner: str = "first") -> Store:
        return sqlite_store.open_store(self.path, owner=owner, clock=self.clock)

    def open_rival(self, owner: str = "second") -> Store:
        return sqlite_store.open_store(self.path, owner=owner, clock=self.clock, locked=False)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchall()

    def large_results(self) -> int:
        found = self.path.parent.rglob("*")
        return sum(entry.is_file() and entry.stat().st_size > 1 << 20 for entry in found)


class PostgresUnderTest(StoreUnderTest):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.first: PostgresStore | None = None

    def open(self, owner: str = "first") -> PostgresStore:
        self.first = self.open_beside(owner)
        return self.first

    def open_beside(self, owner: str) -> PostgresStore:
        """One more running gateway on the same store."""
        from taskgate.store.postgres.store import open_store

        return open_store(self.url, owner=owner, clock=self.clock)

    def open_rival(self, owner: str = "second") -> Store:
        if self.first is not None:
            self.first.engine.presence.end()
        return self.open_beside(owner)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return connection.execute(statement).fetchall()

    def large_results(self) -> int:
        import psycopg

        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT count(DISTINCT name) FROM result_chunks").fetchone()
        assert row is not None
        count: int = row[0]
        return count


async def until_it_listens(store: PostgresStore) -> None:
    """From now on it receives announcements of others, which are not stored. It reads the others' leases after its start."""
    async with asyncio.timeout(LISTENS_WITHIN_S):
        while not store.replicas:
            await asyncio.sleep(0.01)


def new_id(prefix: str = "tg_") -> str:
    return prefix + ulid(START, secrets.token_bytes(10))


def a_call(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": new_id(),
        "principal": "carol",
        "caller": "carol",
        "scope": "default",
        "server": "reports",
        "tool": "build",
        "wire_name": "reports__build",
        "arguments": b'{"year": 2026, "big": 123456789012345678901234567890}',
        "params_rest": b'{"_meta":{"x":1}}',
        "digest": "sha256:d1",
        "generation": Generation.STATEFUL,
        "ttl_ms": 600_000,
        "execution_budget_ms": 60_000,
    }
    return Task(**{**fields, **changes})


def asking(call: Task, workflow: Workflow = OPS, **changes: Any) -> ApprovalRequest:
    fields: dict[str, Any] = {
        "id": new_id("ap_"),
        "workflow": workflow,
        "rule": "rules[0]",
        "binding": Binding(call.principal, call.server, call.tool, call.digest, "sha256:def", "rev1", 0),
        "caller": call.caller,
        "wire_name": call.wire_name,
        "arguments": call.arguments,
    }
    return ApprovalRequest(**{**fields, **changes})
