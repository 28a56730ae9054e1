"""A stdio server asks while several calls of one client are open, with real clients: the question reaches the client's handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, FASTMCP_CALLERS, MEETING, Caller, Generation

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
CLIENTS = (*CALLERS, *FASTMCP_CALLERS)
ANSWERS = {"ask": "accept:Ann", "sample": "hello from the caller's model", "roots": "file:///tmp/project"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """One gateway; each client has a server for itself, because the gateway remembers which servers ask."""
    names = [client.name for client in CLIENTS]
    config = {
        "schema": 1,
        "servers": {name: MEETING.stdio() for name in names},
        "scopes": {name: {"default_servers": [name], "names": "plain"} for name in names},
    }
    async with running_gateway(config) as gateway:
        await gateway.until_listed(*names)
        yield gateway


def together(tool: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    calls = [{"name": name, "arguments": {"folder": str(folder)}} for name in ("stay", tool)]
    return {"op": "together", "calls": calls}


def script(caller: Caller, folder: Path) -> list[dict[str, Any]]:
    """Two calls at once for each kind of question. A 2026 client without a name or a token has no conversation: its question can
    be distinguished once the server is known to ask, so it asks once before."""
    alone = [{"op": "call", "name": "ask", "arguments": {}}] if caller.generation is Generation.STATELESS else []
    return [*alone, *(together(tool, folder / tool) for tool in ANSWERS)]


@pytest.mark.parametrize(
    "caller", [pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer, "mcp130")) for c in CLIENTS]
)
async def test_questions_reach_a_client_with_two_calls_open(gateway: Gateway, caller: Caller, tmp_path: Path) -> None:
    seen = await caller.play(script(caller, tmp_path), url=f"{gateway.url}/{caller.name}")
    steps = [step for step in seen if step["op"] == "together"]
    assert all("value" in step for step in steps), seen
    texts = [[result["content"][0]["text"] for result in step["value"]] for step in steps]
    assert texts == [["stayed", answer] for answer in ANSWERS.values()]
