"""What the contract suite needs from an adapter: a way to open a store, a clock to turn, and calls to keep."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskgate.core.generations import Generation
from taskgate.core.governance.approval import Approver, Binding, Workflow
from taskgate.core.tasks import ids
from taskgate.core.tasks.task import Task
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store import Store
from taskgate.store.sqlite.store import open_store

START = 1_800_000_000_000
ANN = Approver("ann", frozenset({"approver"}))
BOB = Approver("bob", frozenset({"approver"}))
OPS = Workflow("ops")


class TurnedClock:
    """A clock that stands still until a test turns it."""

    def __init__(self) -> None:
        self.now_ms = START

    def __call__(self) -> int:
        return self.now_ms

    def turn(self, ms: int) -> None:
        self.now_ms += ms


class SqliteUnderTest:
    """Opens the SQLite adapter. A rival is a second owner on the same data, as after a failover."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self.clock = TurnedClock()

    def open(self, owner: str = "first") -> Store:
        return open_store(self.path, owner=owner, clock=self.clock)

    def open_rival(self, owner: str = "second") -> Store:
        return open_store(self.path, owner=owner, clock=self.clock, locked=False)


ADAPTERS: dict[str, Callable[[Path], SqliteUnderTest]] = {"sqlite": SqliteUnderTest}


def new_id(prefix: str = "tg_") -> str:
    return prefix + ids.ulid(START, secrets.token_bytes(10))


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
