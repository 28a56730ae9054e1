"""A script with real workers, and a gateway that is killed at a write of the script; the ledger shows what was executed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.activity.callers import HttpSession, call, call_json
from tests.chaos.crash_setup import CLASSES, CrashingGateway, LedgerFile, configuration, running_setup
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import migrated_url
from tests.harness.programs import free_port
from tests.replicas.test_two_gateways import operator

pytest.importorskip("pydantic_monty")
pytestmark = pytest.mark.slow
CODE = """
import asyncio

async def once(n, tool="books__once"):
    try:
        await call_tool(tool, call="once " + str(n))
        return "done"
    except Exception as e:
        return tool_error(e).type

await books.read(call="read 1")
done = [await once(1)]
three = await asyncio.gather(once(2), books.read(call="read 2"), once(3))
done += [three[0], three[2]]
colour = await ask("Which colour?")
done.append(await once(4))
done.append(await once(5, "books__repeatable"))
await sleep(0.2)
for n in (6, 7):
    done.append(await once(n))
await books.read(call="read 3")
{"done": done, "colour": colour}
"""
ONCE = tuple(f"once {n}" for n in range(1, 8))
READ = ("read 1", "read 2", "read 3")
TOKEN = "a token of ann"
KEY = "a script that is killed"
ANSWER = {"action": "accept", "content": {"answer": "blue"}}
DEADLINE_S = 60
IN_FLIGHT = 2
"""Calls that may run only once and are in flight at the same time: so many outcomes may be unknown after one crash."""
WRITES = 37
"""The accept, start and end of the script, ten steps, two writes of each of its ten calls, one decision of an approver, and three
of the question: that it waits, its answer where it is given, and the same answer by the script that waits for it.
"""


def scripts_on(port: int, **more: Any) -> dict[str, Any]:
    """One of the tools that may run only once needs an approval."""
    config = configuration(port)
    config["servers"]["books"]["tools"] = {**CLASSES, "repeatable": {"class": "once"}}
    scopes = {"default": {"default_servers": ["*"], "scripts": "on", "mode": "both"}}
    rules = [{"match": "repeatable", "action": "approve"}]
    tokens = [{"id": "ann", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]
    return {**config, "scopes": scopes, "governance": {"rules": rules}, "tokens": tokens, **more}


@asynccontextmanager
async def session_of_ann(gateway: Gateway) -> AsyncIterator[HttpSession]:
    """With a token, so that a later session finds the script and its question."""
    async with httpx2.AsyncClient(timeout=DEADLINE_S, verify=NO_TLS) as http:
        caller = HttpSession(http, gateway.url, TOKEN)
        await caller.open({})
        yield caller


async def decide_all(gateway: Gateway, caller: HttpSession) -> None:
    """Approve what waits, and answer what is in the inbox of the caller, until cancelled or the gateway is killed."""
    with contextlib.suppress(httpx2.HTTPError, OSError):
        while True:
            for row in (await operator(gateway, "GET", "/api/approvals")).json():
                await operator(gateway, "POST", f"/api/approvals/{row['id']}/approve", {})
            for question in (await call_json(caller, "get_elicitations"))["elicitations"]:
                await call(caller, "respond_to_elicitation", request_id=question["request_id"], **ANSWER)
            await asyncio.sleep(0.05)


@asynccontextmanager
async def people(gateway: Gateway, caller: HttpSession) -> AsyncIterator[None]:
    """The script's approver and its caller."""
    working = asyncio.create_task(decide_all(gateway, caller))
    try:
        yield
    finally:
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def begin(caller: HttpSession) -> str:
    params = {
        "name": "run_script",
        "arguments": {"code": CODE},
        "task": {"ttl": 600_000},
        "_meta": {"taskgate/idempotencyKey": KEY},
    }
    return str((await caller.ask("tools/call", params))["task"]["taskId"])


async def run_until_killed(gateway: CrashingGateway) -> str | None:
    """Start the script and play its people until the gateway is killed; None if that was before it returned the task.

    It is always killed: the number of writes is the same in every run.
    """
    task = None
    async with session_of_ann(gateway) as caller:
        with contextlib.suppress(httpx2.HTTPError):
            task = await begin(caller)
        async with people(gateway, caller):
            await asyncio.wait_for(gateway.crashed(), DEADLINE_S)
    return task


async def killed_at(folder: Path, fate: str, store: dict[str, Any]) -> None:
    """The gateway is killed and started again."""
    async with running_setup(folder, fate, more=partial(scripts_on, **store)) as setup:
        task = await run_until_killed(setup.gateway)
        await setup.gateway.start_again()
        await check_end(fate, setup.gateway, task, setup.ledger)


async def owner_killed_at(folder: Path, fate: str) -> None:
    """The owner of the script, one of three gateways, is killed and stays away; another one continues the script."""
    shared: dict[str, Any] = {"store": {"url": migrated_url()}}
    async with running_setup(folder, fate, more=partial(scripts_on, **shared)) as setup:
        others = [Gateway(folder / name, free_port()) for name in ("second", "third")]
        try:
            for other in others:
                other.state.mkdir(parents=True)
                other.write(scripts_on(setup.port, **shared))
                await other.start()
            task = await run_until_killed(setup.gateway)
            await check_end(fate, others[0], task, setup.ledger)
        finally:
            for other in others:
                if other.program is not None and other.program.alive:
                    await other.program.end(signal.SIGKILL)


async def check_end(fate: str, gateway: Gateway, task: str | None, ledger: LedgerFile) -> None:
    """The script ends with the value that fits the ledger: no call is lost, and none that may run only once runs twice."""
    async with session_of_ann(gateway) as caller:
        task = task or await begin(caller)
        async with people(gateway, caller):
            result = await asyncio.wait_for(caller.ask("tasks/result", {"taskId": task}), DEADLINE_S)
    assert "result" in result["structuredContent"], result["content"]
    value = result["structuredContent"]["result"]
    assert value["colour"] == "blue", (fate, value)
    executed = [ledger.count(call) for call in ONCE]
    assert max(executed) <= 1, (fate, executed)
    assert all(ledger.count(call) >= 1 for call in READ)
    unknown = value["done"].count("outcome_unknown")
    assert unknown <= IN_FLIGHT, (fate, value)
    for word, times in zip(value["done"], executed, strict=True):
        assert (word, times) == ("done", 1) or word == "outcome_unknown", (fate, value, executed)


def of_kind(store: str) -> dict[str, Any]:
    return {"store": {"url": migrated_url()}} if store == "postgres" else {}


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
