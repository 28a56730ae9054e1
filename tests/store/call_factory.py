"""A task to put into a store, and how long a test waits for one."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.task import Task
from taskgate.store.sqlite.store import SqliteStore

DEADLINE_S = 120


def a_call(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": new_task_id(time.time_ns() // 1_000_000, secrets.token_bytes(10)),
        "principal": "carol",
        "caller": "carol",
        "scope": "default",
        "server": "reports",
        "tool": "build",
        "wire_name": "reports__build",
        "arguments": b"{}",
        "digest": "sha256:d1",
        "generation": Generation.STATEFUL,
        "ttl_ms": 600_000,
        "execution_budget_ms": 60_000,
    }
    return Task(**{**fields, **changes})


async def store_recovers(store: SqliteStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while store.problem is not None:
            await asyncio.sleep(0.05)
