"""Real SDK clients hold every conversation through a balancer without stickiness, in front of three gateways on one store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.conversations.behaviours import complaints, script
from tests.harness.absent import reason_for
from tests.harness.peers import CALLERS, UPSTREAMS, Caller
from tests.replicas.three_gateways import LONG_LEASE, deployed, replicas_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
STATEFUL, STATELESS = UPSTREAMS[0], UPSTREAMS[1]
LIMITS = {"limits": {"url_elicitations_per_minute": 1000}, "tasks": {"grace_ms": 100}}


BALANCERS = [
    "our own",
    pytest.param("haproxy", marks=[pytest.mark.long, pytest.mark.peers("haproxy")]),
    pytest.param("nginx", marks=[pytest.mark.long, pytest.mark.peers("nginx")]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BALANCERS)
async def balancer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Its address: the one of these tests, or a real one with its example file."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for upstream in (STATEFUL, STATELESS):
            if reason_for(upstream.peer) is None:
                servers[upstream.name] = {"url": await stack.enter_async_context(upstream.http())}
        scopes = {name: {"default_servers": [name], "names": "plain", "helper_tools": "never"} for name in servers}
        folder = tmp_path_factory.mktemp("sdk-replicas")
        config = {"schema": 1, "servers": servers, "scopes": scopes, **LIMITS}
        gateways, found, _ = await stack.enter_async_context(replicas_of(config, folder, launcher=LONG_LEASE))
        if request.param == "our own":
            yield found.url
        else:
            yield await stack.enter_async_context(deployed(request.param, gateways, folder))


def pairings() -> list[Any]:
    """Every client with the server of the other generation, where the gateway holds most: sessions, questions, rounds."""
    return [
        pytest.param(
            caller,
            upstream.name,
            id=f"{caller.name} to {upstream.name}",
            marks=[pytest.mark.peers(caller.peer, upstream.peer), *([pytest.mark.long] if is_long else [])],
        )
        for caller in CALLERS
        for upstream, is_long in ((STATEFUL, False), (STATELESS, True))
    ]


@pytest.mark.parametrize(("caller", "upstream"), pairings())
async def test_every_conversation_of_a_real_client_works(balancer: str, caller: Caller, upstream: str) -> None:
    observations = await caller.play(script(), url=f"{balancer}/{upstream}")
    found = complaints(observations)
    assert found == {}, json.dumps(found, indent=1)
