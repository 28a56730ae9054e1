"""The work that one server can cause in one iteration of the event loop, counted, so independent of the machine's load."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.virtual_time import Call, Gateway, Upstream, the_loop, until, virtual_time

from taskgate.core import wire
from taskgate.core.wire import Message
from taskgate.mcp.turn_budget import TURN_MESSAGES
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.stream_wire import AT_ONCE, StreamWire

MANY = 1_000


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many messages were handled in each step of the loop."""
    received: Counter[int] = Counter()
    step = [0]
    usual = asyncio.Handle._run

    def counted(handle: asyncio.Handle) -> None:
        step[0] += 1
        usual(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", counted)
    for link in (StatefulLink, StatelessLink):

        def incoming(self: object, message: Message, flight: object, usual: object = link.incoming) -> None:
            received[step[0]] += 1
            usual(self, message, flight)  # type: ignore[operator]

        monkeypatch.setattr(link, "incoming", incoming)
    return received


def _client(generation: str) -> Upstream:
    upstream = Upstream(generation)

    async def talk(call: Call) -> str:
        line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        call.reply.open_stream()
        call.reply.chunk(b"data: " + wire.encode(line) + b"\n\n")
        # All in one go, and in one chunk, as a server does that has its output buffered.
        call.reply.chunk((b"data: " + wire.encode(line) + b"\n\n") * (MANY - 1))
        return "said"

    upstream.tool("talk", talk)
    return upstream


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_many_notifications_are_handled_in_several_turns(generation: str, turns: Counter[int]) -> None:
    async with Gateway({}, {"talker": _client(generation)}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("talker__talk")).text == "said"
        assert turns.total() >= MANY
        assert max(turns.values()) <= TURN_MESSAGES


@virtual_time
async def test_a_response_after_many_notifications_survives_a_broken_connection(turns: Counter[int]) -> None:
    upstream = _client("2025")

    async def send_and_break(call: Call) -> str:
        line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        answer = {"jsonrpc": "2.0", "id": call.message["id"], "result": {"content": [{"type": "text", "text": "done"}]}}
        call.reply.open_stream()
        events = (b"data: " + wire.encode(line) + b"\n\n") * MANY + b"data: " + wire.encode(answer) + b"\n\n"
        call.reply.chunk(events)
        call.reply.end.abort()
        return ""

    upstream.tool("breaks", send_and_break)
    async with Gateway({}, {"talker": upstream}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("talker__breaks")).text == "done"


class _Silent(StreamWire):
    """A stream without a transport."""

    def __init__(self) -> None:
        super().__init__("child", Intake(), SecretFilter(ServerSecrets(())))
        self.held_back = 0
        self.went_on = 0

    def pause_reading(self) -> None:
        self.held_back += 1

    def resume_reading(self) -> None:
        self.went_on += 1


class _Counting:
    def __init__(self) -> None:
        self.received = 0
        self.is_lost = False

    def incoming(self, message: Message, flight: object) -> None:
        self.received += 1

    def lost(self, reason: object) -> None:
        self.is_lost = True


@virtual_time
async def test_many_lines_of_a_child_are_handled_in_several_turns() -> None:
    stream, ears = _Silent(), _Counting()
    stream.attach(ears)
    line = wire.notification("notifications/message", b'{"level":"info","data":"x"}')
    for _ in range(MANY):
        stream.received(line)
    assert ears.received <= AT_ONCE
    assert stream.held_back == 1
    stream.stream_ended("ended with exit code 0")
    assert not ears.is_lost, "what came before the end is handled first"
    maximum = before = ears.received
    while not ears.is_lost:
        the_loop().call_soon(lambda: None)
        await asyncio.sleep(0)
        maximum, before = max(maximum, ears.received - before), ears.received
    assert maximum <= AT_ONCE
    assert ears.received == MANY


@virtual_time
async def test_messages_after_a_large_line_keep_their_order_and_are_not_lost() -> None:
    stream, ears = _Silent(), _Counting()
    stream.attach(ears)
    stream.received(wire.notification("notifications/message", wire.encode({"level": "info", "data": "x" * (4 << 20)})))
    stream.received(wire.notification("notifications/message", b'{"level":"info","data":"x"}'))
    assert ears.received == 0
    await until(lambda: ears.received == 2, "both are handled")
    assert stream.went_on == 1
