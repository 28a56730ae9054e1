"""Servers with the HTTP+SSE transport of 2024-11-05, configured as such or detected."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.gateway import running_gateway
from tests.harness.peers import interpreter
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient

PROGRAM = Path(__file__).parent.parent / "peers" / "old_sse_server_130.py"


@pytest.mark.peers("mcp130")
@pytest.mark.parametrize("transport", ["sse", "auto"])
async def test_a_tool_behind_the_http_sse_transport_is_listed_and_called(tmp_path: Path, transport: str) -> None:
    port = free_port()
    server = {"url": f"http://127.0.0.1:{port}/sse", "transport": transport}
    async with (
        running([interpreter("mcp130"), PROGRAM, str(port)], listening(port)),
        running_gateway({"schema": 1, "servers": {"elder": server}}, tmp_path) as gateway,
    ):
        for stateless in (False, True):
            async with RawClient(gateway.url, stateless) as caller:
                answer = await caller.call("elder__echo", {"text": "still here"})
                assert answer.result["content"][0]["text"] == "still here"
