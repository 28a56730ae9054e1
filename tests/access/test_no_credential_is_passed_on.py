"""The credential of a caller reaches no server, in any generation, for plain calls and tasks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time
from tests.virtual_time.upstream_http import HttpReply

TOKEN = "canary-token-0123456789abcdef"
CONFIG: dict[str, Any] = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]}
SHOWN = {
    "cookie": "taskgate_session=canary-cookie",
    "x-api-key": "canary-key",
    "proxy-authorization": "Basic canary-proxy",
    "x-forwarded-for": "203.0.113.77",
    "forwarded": "for=203.0.113.77",
    "x-client-dn": "CN=canary-name",
}


class RecordingUpstream(Upstream):
    """Keeps every byte of every head and body that came in."""

    def __init__(self, generation: str) -> None:
        super().__init__(generation)
        self.received_text: list[str] = []

    def _request(self, method: str, headers: dict[str, str], body: bytes, reply: HttpReply) -> None:
        self.received_text.append(f"{headers} {body.decode()}")
        super()._request(method, headers, body, reply)


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("behind", ["2025", "2026"])
async def test_no_credential_of_a_caller_reaches_a_server(generation: str, behind: str) -> None:
    server = RecordingUpstream(behind)

    @server.tool("echo")
    async def echo(_call: Call) -> str:
        return "done"

    async with Gateway(CONFIG, {"far": server}) as gate:
        capabilities = {"tasks": {}} if generation == "2025" else TASKS_EXTENSION
        caller = await gate.caller(generation, token=TOKEN, capabilities=capabilities)
        plain = {"name": "far__echo", "arguments": {}}
        await caller.begin("tools/call", plain, headers=SHOWN).done()
        if generation == "2025":
            await caller.begin("tools/call", {**plain, "task": {"ttl": 60_000}}, headers=SHOWN).done()
        await gate.advance(1)
        assert server.count("echo") == (2 if generation == "2025" else 1)
        session = caller.headers.get("mcp-session-id", "canary")
        for message in server.received_text:
            assert "canary" not in message
            assert "203.0.113.77" not in message
            assert session not in message
