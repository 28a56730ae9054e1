"""A gateway that shuts down answers connections that were opened just before; idle connections do not delay it."""

from __future__ import annotations

import signal

import pytest
from tests.virtual_time import Gateway, Upstream, the_loop, virtual_time

ASKED = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("before", [0, 1, len(ASKED) - 1], ids=["nothing", "a byte", "nearly all"])
@virtual_time
async def test_a_request_on_a_connection_made_just_before_is_answered(before: int) -> None:
    """`before`: how much of its request the gateway has read when it receives the signal."""
    async with Gateway({}, {"notes": Upstream("2025")}) as gate:
        reader, writer = await gate.connect()
        writer.write(ASKED[:before])
        await gate.advance(0.01)
        gate.send_signal(signal.SIGTERM)
        await gate.advance(0.01)
        writer.write(ASKED[before:])
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        await gate.stop()


@virtual_time
async def test_a_connection_without_a_request_delays_the_end_by_a_second() -> None:
    async with Gateway({}, {"notes": Upstream("2025")}) as gate:
        reader, _writer = await gate.connect()
        await gate.advance(0.01)
        began = the_loop().time()
        await gate.stop()
        assert await reader.read() == b""
        assert the_loop().time() - began < 5
