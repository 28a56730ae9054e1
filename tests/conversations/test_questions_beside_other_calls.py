"""A stdio server asks while several calls are open, with real clients: its question reaches the client that it is for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, FASTMCP_CALLERS, MEETING, Caller

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
SCOPE = {"default_servers": ["*"], "names": "plain"}
ANSWERS = {"ask": "accept:Ann", "sample": "hello from the caller's model", "roots": "file:///tmp/project"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    config = {"schema": 1, "servers": {"meeting": MEETING.stdio()}, "scopes": {"default": SCOPE}}
    async with running_gateway(config) as gateway:
        await gateway.until_listed()
        yield gateway


@pytest.mark.parametrize("tool", ANSWERS)
@pytest.mark.parametrize(
    "caller",
    [pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer, "mcp130")) for c in (*CALLERS, *FASTMCP_CALLERS)],
)
async def test_a_question_reaches_the_client_that_has_two_calls_open(
    gateway: Gateway, caller: Caller, tool: str
) -> None:
    calls: list[dict[str, Any]] = [
        {"name": "stay", "arguments": {}},
        {"name": tool, "arguments": {"company": 1}},
    ]
    (seen,) = await caller.play([{"op": "together", "calls": calls}], url=gateway.url)
    texts = [result["content"][0]["text"] for result in seen["value"]]
    assert texts == ["stayed", ANSWERS[tool]]
