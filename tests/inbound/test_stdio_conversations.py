"""One conversation by lines, as with `taskgate stdio`, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import MessageReader
from taskgate.inbound.stdio import LineOutlet, StdioEndpoint

OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}


class Lines(asyncio.WriteTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[dict[str, Any]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(json.loads(bytes(data)))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def answers(self, request_id: object) -> list[dict[str, Any]]:
        return [message for message in self.written if message.get("id") == request_id]


class Conversation:
    def __init__(self, gate: Gateway) -> None:
        self.reader, self.lines = asyncio.StreamReader(), Lines()
        endpoint = StdioEndpoint(
            gate.life.app.gateway.transports, Caller("local:ann"), SessionRequest(), MessageReader()
        )
        self.task = asyncio.ensure_future(endpoint.converse(self.reader, LineOutlet(self.lines)))

    def write(self, *messages: bytes) -> None:
        self.reader.feed_data(b"".join(message + b"\n" for message in messages))

    async def end(self) -> None:
        self.reader.feed_eof()
        await self.task


def line(request_id: object, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


async def _after_a_while(call: Call) -> dict[str, Any]:
    """An opening waits a moment for what is being listed."""
    await call.sleep(5)
    return {"tools": []}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(20)
        return "done"

    return notes


@virtual_time
async def test_concurrent_initialize_requests_open_one_conversation() -> None:
    notes = server()
    notes.on("tools/list", _after_a_while)
    async with Gateway({}, {"notes": notes}) as gate:
        talk = Conversation(gate)
        talk.write(line("a", "initialize", OPENING), line("b", "initialize", OPENING))
        await gate.advance(10)
        assert "result" in talk.lines.answers("a")[0]
        assert talk.lines.answers("b")[0]["error"]["data"]["error_type"] == "invalid_request"
        await talk.end()
        assert len(gate.life.app.gateway.lifecycle.sessions) == 0


@virtual_time
async def test_requests_after_initialize_wait_for_it_also_after_a_refused_one() -> None:
    notes = server()
    notes.on("tools/list", _after_a_while)
    async with Gateway({}, {"notes": notes}) as gate:
        talk = Conversation(gate)
        talk.write(line("a", "initialize", {"protocolVersion": 5}))
        await gate.advance(0.01)
        assert "error" in talk.lines.answers("a")[0]
        talk.write(line("b", "initialize", OPENING), line("c", "ping", {}))
        await gate.advance(10)
        assert talk.lines.answers("c")[0]["result"] == {}
        await talk.end()


@virtual_time
async def test_a_call_is_cancelled_by_any_spelling_of_its_id() -> None:
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        talk = Conversation(gate)
        talk.write(line("a", "initialize", OPENING))
        await gate.advance(5)
        talk.write(line("d\u00e9", "tools/call", {"name": "notes__slow", "arguments": {}}))
        await gate.advance(1)
        again = {"jsonrpc": "2.0", "id": "d\u00e9", "method": "ping"}
        talk.write(json.dumps(again, ensure_ascii=False).encode())
        await gate.advance(1)
        assert talk.lines.answers("d\u00e9")[0]["error"]["data"]["error_type"] == "invalid_request"
        talk.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"d\\u00e9"}}')
        await gate.advance(30)
        assert len(talk.lines.answers("d\u00e9")) == 1
        await talk.end()
