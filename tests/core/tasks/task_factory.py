"""A task to test with: every field has a plain value that a test may change."""

from __future__ import annotations

from typing import Any

from taskgate.core.generations.generation import Generation
from taskgate.core.tasks.task import Attempt, Task

NOW = 1_800_000_000_000


def a_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": "tg_01JCQ3Z5W00000000000000000",
        "principal": "ann",
        "caller": "ann",
        "scope": "default",
        "server": "reports",
        "tool": "build",
        "wire_name": "reports__build",
        "arguments": b'{"year":2026}',
        "digest": "d1",
        "generation": Generation.STATEFUL,
        "ttl_ms": 600_000,
        "execution_budget_ms": 60_000,
        "created_ms": NOW,
        "updated_ms": NOW,
        "owner": "node",
        "fence": 1,
        "revision": 1,
    }
    return Task(**{**fields, **changes})


def an_attempt(**changes: Any) -> Attempt:
    fields: dict[str, Any] = {
        "number": 1,
        "fence": 1,
        "byte_hash": "b1",
        "upstream": "reports",
        "sent_at_ms": NOW,
    }
    return Attempt(**{**fields, **changes})
