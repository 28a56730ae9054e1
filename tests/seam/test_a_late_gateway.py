"""A gateway that cannot keep up says so at once: what waited too long to be looked at is refused and was not executed."""

from __future__ import annotations

import json

from tests.seam import Gateway, Upstream, seam, settle, the_loop
from tests.seam.callers import META, STATELESS
from tests.seam.http11 import body_parts, read_head, request_bytes


def call_bytes(tool: str) -> bytes:
    meta = {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "_meta": meta}}
    headers = {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": STATELESS,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    return request_bytes("POST", "/mcp", headers, json.dumps(message).encode())


async def answered(gate: Gateway, busy_s: float) -> tuple[int, dict[str, str], bytes]:
    """One call. Something else holds the gateway for `busy_s` between reading the call and looking at it."""
    reader, writer = await gate.connect()
    await settle()
    writer.write(call_bytes("notes__echo"))
    the_loop().call_soon(the_loop().leap, busy_s)
    status, headers = await read_head(reader)
    body = b"".join([part async for part in body_parts(reader, headers)])
    writer.close()
    return status, headers, body


@seam
async def test_a_gateway_that_is_late_refuses_calls_until_it_is_on_time_again() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        assert (await answered(gate, 0.19))[0] == 200
        status, headers, body = await answered(gate, 0.21)
        assert (status, headers["retry-after"]) == (503, "1")
        data = json.loads(body)["error"]["data"]
        assert (data["error_type"], data["executed"]) == ("overloaded", "no")
        assert (await answered(gate, 0.0))[0] == 200
        assert server.count("echo") == 2
