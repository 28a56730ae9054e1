"""Real clients of both generations run a script: as a plain call, as a task, with helper tools and through the facade."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, UPSTREAMS, Caller

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
CODE = """both = await asyncio.gather(peer.echo(text="one"), peer.echo(text=inputs["text"]))
{"both": both}
"""
ASKING_SCRIPT = """schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
answer = await ask("Who are you?", schema)
await peer.echo(text=answer["name"])
"""
LONG = """await sleep(3)
await peer.echo(text="late")
"""
SCOPES: dict[str, Any] = {
    "scripted": {"default_servers": ["*"], "scripts": "on", "helper_tools": "never"},
    "helpers": {"default_servers": ["*"], "scripts": "on", "helper_tools": "always"},
    "facade": {"default_servers": ["*"], "scripts": "on", "mode": "facade"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with gateway_of() as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def short_waits() -> AsyncIterator[Gateway]:
    """Holds a reply for a short time only, so that the long script is followed by its task."""
    async with gateway_of(tasks={"promote_after_ms": 1_000, "hold_ms": 1_000, "grace_ms": 1_000}) as gateway:
        yield gateway


@asynccontextmanager
async def gateway_of(**more: Any) -> AsyncIterator[Gateway]:
    async with running_gateway({"servers": {"peer": UPSTREAMS[0].stdio()}, "scopes": SCOPES, **more}) as gateway:
        await gateway.until_listed("scripted")
        yield gateway


def every(callers: tuple[Caller, ...]) -> list[Any]:
    """All of them. Each client over one transport, in turn, is part of `make test-programs`, the rest of `make conversations`."""
    return [
        pytest.param(
            caller,
            transport,
            id=f"{caller.name} over {transport}",
            marks=[pytest.mark.peers(caller.peer), *([pytest.mark.long] if (one + two) % 2 else [])],
        )
        for one, caller in enumerate(callers)
        for two, transport in enumerate(("http", "stdio"))
    ]


async def played(
    gateway: Gateway, caller: Caller, transport: str, scope: str, *steps: dict[str, Any]
) -> list[dict[str, Any]]:
    if transport == "http":
        return await caller.play(steps, url=f"{gateway.url}/{scope}")
    return await caller.play(steps, command=gateway.stdio_command("--scope", scope))


def runs(op: str, code: str, **inputs: Any) -> dict[str, Any]:
    return {"op": op, "name": "run_script", "arguments": {"code": code, "inputs": inputs}}


def result_of(observation: dict[str, Any], *path: str) -> Any:
    """The value of the script."""
    found: Any = observation.get("value") or observation
    for name in path:
        found = found[name]
    assert "structuredContent" in found, observation
    return found["structuredContent"]["result"]


def asked_texts(outcome: dict[str, Any]) -> list[str]:
    """The texts of the forms that a client was asked to fill in, without the line that names the script."""
    return [text.partition("\n\n")[2] for kind, text in outcome.get("questions", []) if kind == "form"]


@pytest.mark.parametrize(("caller", "transport"), every(CALLERS))
async def test_client_runs_a_script_as_a_plain_call(gateway: Gateway, caller: Caller, transport: str) -> None:
    described = {"op": "call", "name": "describe_tools", "arguments": {"names": ["peer.echo"]}}
    listed, stubs, ran = await played(
        gateway, caller, transport, "scripted", {"op": "tools"}, described, runs("call", CODE, text="two")
    )
    assert {"run_script", "describe_tools"} <= set(listed["value"])
    assert "async def echo(" in json.dumps(stubs["value"])
    assert result_of(ran) == {"both": ["one", "two"]}


@pytest.mark.parametrize(("caller", "transport"), every(CALLERS))
async def test_script_asks_the_person_at_the_client(gateway: Gateway, caller: Caller, transport: str) -> None:
    [ran] = await played(gateway, caller, transport, "scripted", runs("call", ASKING_SCRIPT))
    assert asked_texts(ran) == ["Who are you?"], ran
    assert result_of(ran) == "Ann"


@pytest.mark.parametrize(("caller", "transport"), every(tuple(caller for caller in CALLERS if caller.tasks)))
async def test_client_runs_a_script_as_a_task(gateway: Gateway, caller: Caller, transport: str) -> None:
    ran, asked = await played(
        gateway, caller, transport, "scripted", runs("task", CODE, text="two"), runs("task", ASKING_SCRIPT)
    )
    for step in (ran, asked):
        assert (step.get("value") or {}).get("status") == "completed", step
    assert result_of(ran, "result") == {"both": ["one", "two"]}
    assert asked_texts(asked) == ["Who are you?"]
    assert result_of(asked, "result") == "Ann"


@pytest.mark.parametrize(("caller", "transport"), every(CALLERS))
async def test_client_without_tasks_follows_a_long_script(short_waits: Gateway, caller: Caller, transport: str) -> None:
    [ran] = await played(short_waits, caller, transport, "helpers", runs("followed", LONG))
    assert ran.get("value", {}).get("notice") is True, ran
    assert "late" in json.dumps(ran["value"]["result"])


@pytest.mark.parametrize(("caller", "transport"), every(CALLERS))
async def test_client_runs_a_script_through_the_facade(gateway: Gateway, caller: Caller, transport: str) -> None:
    [ran] = await played(gateway, caller, transport, "facade", runs("call", CODE, text="two"))
    assert result_of(ran) == {"both": ["one", "two"]}
