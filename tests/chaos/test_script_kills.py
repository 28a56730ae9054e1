"""A script with real workers, and a gateway that is killed at a write of the script; the ledger shows what was executed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import http_session
from tests.chaos.stage import Stage, set_stage

pytest.importorskip("pydantic_monty")
pytestmark = pytest.mark.slow
CODE = """
import asyncio
async def once(n):
    try:
        await books.once(call="once " + str(n))
        return "done"
    except Exception as e:
        return tool_error(e).type

first = await once(1)
await books.read(call="read 1")
rest = await asyncio.gather(once(2), books.read(call="read 2"), once(3))
last = await once(4)
[first, rest[0], rest[2], last]
"""
ONCE = ("once 1", "once 2", "once 3", "once 4")
KEY = "a script that is killed"
ON = {"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}
WRITES = 22
"""One accept, intents and ends of seven calls, five steps, start and end of the script."""


async def begin(stage: Stage) -> str | None:
    """Start the script; None if the gateway was killed before it answered."""
    try:
        async with http_session(stage.gateway) as caller:
            params = {
                "name": "run_script",
                "arguments": {"code": CODE},
                "task": {"ttl": 600_000},
                "_meta": {"taskgate/idempotencyKey": KEY},
            }
            return str((await caller.ask("tools/call", params))["task"]["taskId"])
    except Exception:
        if stage.gateway.program is not None and stage.gateway.program.alive:
            raise
        return None


async def ending(stage: Stage, task: str) -> dict[str, Any]:
    async with http_session(stage.gateway) as caller:
        return await caller.ask("tasks/result", {"taskId": task})


async def killed_at(folder: Path, fate: str) -> None:
    async with set_stage(folder, fate, more=ON) as stage:
        task = await begin(stage)
        await asyncio.wait_for(stage.gateway.died(), 60)
        await stage.gateway.reborn()
        task = task or await begin(stage)
        assert task is not None
        result = await asyncio.wait_for(ending(stage, task), 60)
        assert "result" in result["structuredContent"], result["content"]
        values = result["structuredContent"]["result"]
        executed = [stage.ledger.count(call) for call in ONCE]
        assert max(executed) <= 1, (fate, executed)
        assert all(stage.ledger.count(f"read {n}") >= 1 for n in (1, 2))
        for value, times in zip(values, executed, strict=True):
            assert (value, times) == ("done", 1) or value == "outcome_unknown", (fate, values, executed)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fate", ["before-write+5", "after-write+6", "after-write+12"])
async def test_script_survives_sigkill_at_some_writes(tmp_path: Path, fate: str) -> None:
    await killed_at(tmp_path, fate)


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_script_survives_sigkill_at_every_write(tmp_path: Path, when: str, number: int) -> None:
    await killed_at(tmp_path, f"{when}-write+{number}")
