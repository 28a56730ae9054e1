"""A script with real workers, and a gateway that is killed at a write of the script; the ledger shows what was executed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.activity.callers import http_session
from tests.chaos.stage import DoomedGateway, LedgerFile, configuration, set_stage
from tests.harness.gateway import Gateway
from tests.harness.postgres import fresh_url
from tests.harness.programs import free_port

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
DEADLINE_S = 60
WRITES = 22
"""One accept, intents and ends of seven calls, five steps, start and end of the script."""


async def begin(gateway: Gateway) -> str | None:
    """Start the script; None if the gateway was killed before it answered."""
    try:
        async with http_session(gateway) as caller:
            params = {
                "name": "run_script",
                "arguments": {"code": CODE},
                "task": {"ttl": 600_000},
                "_meta": {"taskgate/idempotencyKey": KEY},
            }
            return str((await caller.ask("tools/call", params))["task"]["taskId"])
    except httpx2.HTTPError:
        assert gateway.program is not None
        await asyncio.wait_for(
            gateway.program.process.wait(), DEADLINE_S
        )  # its end may be known later than its closed connection
        return None


async def ending(gateway: Gateway, task: str) -> dict[str, Any]:
    async with http_session(gateway) as caller:
        return await caller.ask("tasks/result", {"taskId": task})


async def killed(gateway: DoomedGateway, task: str | None) -> bool:
    """Wait until it is killed; False if the script ended first: outcomes that arrive together make fewer steps and writes."""
    dying = asyncio.create_task(gateway.crashed())
    done = asyncio.create_task(ending(gateway, task) if task is not None else gateway.crashed())
    await asyncio.wait({dying, done}, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    if done.done() and task is not None and done.exception() is None:
        await asyncio.wait({dying}, timeout=1)  # it may be killed at the write that ended the script
        return dying.done()
    await asyncio.wait_for(dying, DEADLINE_S)
    done.cancel()
    await asyncio.gather(done, return_exceptions=True)
    return True


async def killed_at(folder: Path, fate: str, store: dict[str, Any]) -> None:
    """The gateway is killed and started again."""
    async with set_stage(folder, fate, more=ON | store) as stage:
        task = await begin(stage.gateway)
        if await killed(stage.gateway, task):
            await stage.gateway.reborn()
        await check_end(fate, stage.gateway, task, stage.ledger)


async def owner_killed_at(folder: Path, fate: str) -> None:
    """The owner of the script, one of three gateways, is killed and stays away; another one continues the script."""
    shared = {"store": {"url": fresh_url()}}
    async with set_stage(folder, fate, more=ON | shared) as stage:
        others = [Gateway(folder / name, free_port()) for name in ("second", "third")]
        try:
            for other in others:
                other.state.mkdir(parents=True)
                other.write({**configuration(stage.port), **ON, **shared})
                await other.start()
            task = await begin(stage.gateway)
            await killed(stage.gateway, task)
            await check_end(fate, others[0], task, stage.ledger)
        finally:
            for other in others:
                if other.program is not None and other.program.alive:
                    await other.program.end(signal.SIGKILL)


async def check_end(fate: str, gateway: Gateway, task: str | None, ledger: LedgerFile) -> None:
    """The script ends with the value that fits the ledger: no call is lost, and none that may run only once runs twice."""
    task = task or await begin(gateway)
    assert task is not None
    result = await asyncio.wait_for(ending(gateway, task), DEADLINE_S)
    assert "result" in result["structuredContent"], result["content"]
    values = result["structuredContent"]["result"]
    executed = [ledger.count(call) for call in ONCE]
    assert max(executed) <= 1, (fate, executed)
    assert all(ledger.count(f"read {n}") >= 1 for n in (1, 2))
    for value, times in zip(values, executed, strict=True):
        assert (value, times) == ("done", 1) or value == "outcome_unknown", (fate, values, executed)


def of_kind(store: str) -> dict[str, Any]:
    return {"store": {"url": fresh_url()}} if store == "postgres" else {}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("store", "fate"),
    [
        ("sqlite", "before-write+5"),
        ("sqlite", "after-write+6"),
        ("sqlite", "after-write+12"),
        ("postgres", "after-write+7"),
        ("postgres", "before-write+13"),
    ],
)
async def test_script_survives_sigkill_at_some_writes(tmp_path: Path, store: str, fate: str) -> None:
    await killed_at(tmp_path, fate, of_kind(store))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fate", ["after-write+5", "before-write+11"])
async def test_script_is_continued_when_its_owner_of_three_is_killed_at_some_writes(tmp_path: Path, fate: str) -> None:
    await owner_killed_at(tmp_path, fate)


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_script_survives_sigkill_at_every_write(tmp_path: Path, store: str, when: str, number: int) -> None:
    await killed_at(tmp_path, f"{when}-write+{number}", of_kind(store))


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_script_is_continued_when_its_owner_of_three_is_killed_at_every_write(
    tmp_path: Path, when: str, number: int
) -> None:
    await owner_killed_at(tmp_path, f"{when}-write+{number}")
