"""Every caller holds every conversation with every upstream through Taskgate, in both generations and on both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.conversations.behaviours import BEHAVIOURS, TASK_BEHAVIOURS, complaints, script
from tests.harness.absent import reason_for
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, FASTMCP_TASKS, UPSTREAMS, Caller, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
TRANSPORTS = ("http", "stdio")
# All callers are one anonymous caller here, and every one of them is shown a URL. The short grace time makes a task of a
# call that works for a moment, in the generation where servers decide.
LIMITS = {"limits": {"url_elicitations_per_minute": 1000}, "tasks": {"grace_ms": 100}}
TRANSPARENT = {"names": "plain", "helper_tools": "never"}


def pairings(callers: tuple[Caller, ...]) -> list[Any]:
    """All of them. Every third one, which still meets each caller, upstream and transport, is part of `make test-programs`; the
    rest is marked long and runs with `make conversations`.
    """
    return [
        pytest.param(
            caller,
            upstream,
            transport,
            id=f"{caller.name} to {upstream.name} over {transport}",
            marks=[
                pytest.mark.peers(caller.peer, upstream.peer),
                *([pytest.mark.long] if (one + two + three) % 3 else []),
            ],
        )
        for one, upstream in enumerate(UPSTREAMS)
        for two, transport in enumerate(TRANSPORTS)
        for three, caller in enumerate(callers)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """One gateway in front of every upstream, each in a scope of its own with plain names."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for upstream in UPSTREAMS:
            if reason_for(upstream.peer) is None:
                servers[f"{upstream.name}-stdio"] = upstream.stdio()
                servers[f"{upstream.name}-http"] = {"url": await stack.enter_async_context(upstream.http())}
        if reason_for(FASTMCP_TASKS.peer) is None:
            servers["fastmcp-http"] = {
                "url": await stack.enter_async_context(FASTMCP_TASKS.http()),
                # Its tools ask in the way of 2026-07-28 only; callers of 2025-11-25 need them translated.
                "generation": "2026-07-28",
            }
        gateway = await stack.enter_async_context(running_gateway(configuration(servers)))
        await gateway.until_listed(*servers)
        yield gateway


def configuration(servers: dict[str, Any]) -> dict[str, Any]:
    scopes = {name: {"default_servers": [name], "names": "plain", "helper_tools": "never"} for name in servers}
    return {"schema": 1, "servers": servers, "scopes": scopes, **LIMITS}


@pytest.mark.parametrize(("caller", "upstream", "transport"), pairings(CALLERS))
async def test_every_conversation_works_over_http(
    gateway: Gateway, caller: Caller, upstream: Upstream, transport: str
) -> None:
    observations = await caller.play(script(), url=f"{gateway.url}/{upstream.name}-{transport}")
    assert complaints(observations) == {}


@pytest.mark.parametrize(("caller", "upstream", "transport"), pairings(tuple(c for c in CALLERS if c.tasks)))
async def test_a_caller_runs_tools_as_tasks(
    gateway: Gateway, caller: Caller, upstream: Upstream, transport: str
) -> None:
    url = f"{gateway.url}/{upstream.name}-{transport}"
    observations = await caller.play(script(TASK_BEHAVIOURS), url=url)
    assert complaints(observations, TASK_BEHAVIOURS) == {}


@pytest.mark.parametrize(
    "caller", [pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer, "fastmcp")) for c in CALLERS if c.tasks]
)
async def test_a_caller_runs_the_tasks_of_a_server_that_has_the_extension(gateway: Gateway, caller: Caller) -> None:
    observations = await caller.play(script(TASK_BEHAVIOURS), url=f"{gateway.url}/fastmcp-http")
    assert complaints(observations, TASK_BEHAVIOURS) == {}


def on_standard_streams() -> list[Any]:
    """Every caller with every upstream, by a bridge and by a gateway of its own; as many of them as above are long."""
    return [
        pytest.param(
            caller,
            upstream,
            by,
            id=f"{by}-{upstream.name}-{caller.name}",
            marks=[
                pytest.mark.peers(caller.peer, upstream.peer),
                *([pytest.mark.long] if (one + two + three) % 3 else []),
            ],
        )
        for one, by in enumerate(("alone", "bridge"))
        for two, upstream in enumerate(UPSTREAMS[:2])
        for three, caller in enumerate(CALLERS)
    ]


@pytest.mark.parametrize(("caller", "upstream", "by"), on_standard_streams())
async def test_every_conversation_works_over_stdio(
    gateway: Gateway, caller: Caller, upstream: Upstream, tmp_path: Any, by: str
) -> None:
    if by == "alone":
        own = Gateway(tmp_path, 0)
        own.write(
            configuration({"only": upstream.stdio()})
            | {"scopes": {"default": {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}}}
        )
        command = own.stdio_command("--alone")
    else:
        command = gateway.stdio_command("--scope", f"{upstream.name}-stdio")
    observations = await caller.play(script(), command=command)
    assert complaints(observations, BEHAVIOURS) == {}
