"""Who came without a credential is remembered by configuration: a reload that asks for one is felt by the very next request."""

from __future__ import annotations

import json

from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.access.credentials import token_digest

VERSION = "2026-07-28"
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": VERSION,
    "mcp-method": "tools/call",
    "mcp-name": "notes__echo",
}
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "notes__echo", "arguments": {}, "_meta": META},
}


def echoing() -> Upstream:
    notes = Upstream("2026")

    @notes.tool("echo")
    async def echo(_call: Call) -> str:
        return "hi"

    return notes


async def status_of(gate: Gateway, **headers: str) -> int:
    """Of one call, on a connection of its own."""
    reader, writer = await gate.connect()
    body = json.dumps(CALL).encode()
    sent = {"host": "127.0.0.1:7467", **HEADERS, **headers, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@virtual_time
async def test_a_reload_that_requires_tokens_ends_cached_anonymous_admissions() -> None:
    token = {"id": "agent", "sha256": token_digest("agent-token-9f2c")}
    async with Gateway({}, {"notes": echoing()}) as gate:
        assert [await status_of(gate), await status_of(gate)] == [200, 200]
        await gate.reload({"tokens": [token]})
        assert await status_of(gate) == 401
        assert await status_of(gate, authorization="Bearer agent-token-9f2c") == 200
        assert await status_of(gate, authorization="Bearer other") == 401
        await gate.reload({})
        assert await status_of(gate) == 200


@virtual_time
async def test_an_admission_for_one_host_is_not_used_for_another() -> None:
    async with Gateway({}, {"notes": echoing()}) as gate:
        assert await status_of(gate) == 200
        assert await status_of(gate, host="evil.example") == 421
        assert await status_of(gate, origin="https://evil.example") == 403
        assert await status_of(gate) == 200
