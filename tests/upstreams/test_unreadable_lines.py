"""A line of a child that cannot be read fails the request that it answers, and the lines after it are read."""

from __future__ import annotations

import asyncio

import pytest
from tests.virtual_time import virtual_time

from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.upstreams.flight import Flight
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets
from taskgate.upstreams.stream_wire import StreamWire

UNREADABLE = (
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"\xff"}}',
    b'{"jsonrpc":"2.0","id":7,"result":{"\xf6":1}}',
    b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}',
)
NAMELESS = (b'{"jsonrpc":"2.0","id":7,"\xf6":1}', b'{"\xed\xa0\x80', b"\xff\xfe")


class Pipe(StreamWire):
    async def _write(self, body: bytes) -> int:
        return 1


async def response_after(pipe: Pipe, line: bytes) -> wire.Message:
    """What a request gets if the child writes this line and then a response."""
    request = asyncio.ensure_future(pipe.request(Flight(7, b"7", 30.0), b"{}"))
    await asyncio.sleep(0)
    pipe.received(line)
    pipe.received(b'{"jsonrpc":"2.0","id":7,"result":{}}')
    return await request


@virtual_time
@pytest.mark.parametrize("line", UNREADABLE, ids=["text", "key", "depth", "duplicate"])
@pytest.mark.parametrize("after_others", [False, True])
async def test_the_request_of_an_unreadable_response_fails_at_once(line: bytes, after_others: bool) -> None:
    pipe = Pipe("child", Intake(), SecretFilter(ServerSecrets(())))
    if after_others:
        # Lines after a large one are read in later iterations.
        pipe.received(b'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":"' + b"x" * 300_000 + b'"}}')
    with pytest.raises(UpstreamError):
        await response_after(pipe, line)
    pipe.received(b'{"jsonrpc":"2.0","id":7,"result":{}}')
    assert (await response_after(pipe, b"a banner")).result == {}


@virtual_time
@pytest.mark.parametrize("line", NAMELESS)
async def test_a_line_that_answers_nothing_is_dropped(line: bytes) -> None:
    pipe = Pipe("child", Intake(), SecretFilter(ServerSecrets(())))
    assert (await response_after(pipe, line)).result == {}
    assert pipe.invalid_lines == 1
