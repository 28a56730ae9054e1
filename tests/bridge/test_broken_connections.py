"""A gateway that dies at every possible byte of what the bridge writes: no request is lost, and none is executed twice.

The streams are real pipes and Unix sockets. The kernel decides by itself how much of a write it takes, so the number of bytes that
the first gateway gets is set by limiting what `os.write` is given; the failures after that are the kernel's own.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskgate.bridge import relay as relays
from taskgate.bridge.pending import encode
from taskgate.bridge.relay import ClientGone, Relay
from taskgate.bridge.starter import GatewayConnection, NoGateway, Wait

WAIT_S = 60.0
REPEATABLE = "tools/list"


def request(request_id: Any, method: str = "tools/call", **params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + b"\n"


BURST = [
    request(1, name="charge"),
    request(2, REPEATABLE),
    encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}) + b"\n",
    request(3, name="charge"),
    request(4, "tasks/get", taskId="tg_1"),
    request(5, "tasks/cancel", taskId="tg_1"),
    request("six", name="charge"),
]
REQUESTS = [1, 2, 3, 4, 5, "six"]
REPEATED = {2, 4}
"""Asked again of the next gateway: they run nothing."""
BYTES = sum(map(len, BURST))


class Gateway:
    """The other end of a connection: complete lines are executed, and answered if `answers`."""

    def __init__(self, *, answers: bool) -> None:
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        near.setblocking(False)
        self.far.setblocking(False)
        self.line = GatewayConnection(near, b"")
        self.answers = answers
        self.executed: list[Any] = []
        self.rest = b""

    def run(self) -> None:
        """Handle what has arrived."""
        while True:
            try:
                chunk = self.far.recv(65536)
            except BlockingIOError:
                return
            if not chunk:
                return
            *whole, self.rest = (self.rest + chunk).split(b"\n")
            for line in whole:
                message = json.loads(line)
                if "id" in message:
                    self.executed.append(message["id"])
                    if self.answers:
                        reply = encode({"jsonrpc": "2.0", "id": message["id"], "result": {"done": True}})
                        self.far.send(reply + b"\n")

    def crash(self) -> None:
        self.run()
        self.far.close()


class Setup:
    """A relay between two pipes of a client and the gateways of a test."""

    def __init__(self, gateways: list[Gateway], reach: Callable[[Wait], GatewayConnection] | None = None) -> None:
        self.source, self.types = os.pipe()
        self.reads, self.sink = os.pipe()
        for descriptor in (self.reads, self.sink):
            os.set_blocking(descriptor, False)
        self.gateways = gateways
        self.reached = 1
        self.received: list[dict[str, Any]] = []
        self._rest = b""
        self.relay = Relay(gateways[0].line, reach or self._reach, "the.log", self.source, self.sink)

    def _reach(self, _wait: Wait) -> GatewayConnection:
        if self.reached >= len(self.gateways):
            raise NoGateway("There is no gateway.")
        self.reached += 1
        return self.gateways[self.reached - 1].line

    def turn(self) -> None:
        self.relay._turn(0.0)
        for gateway in self.gateways[: self.reached]:
            if gateway.far.fileno() != -1:
                gateway.run()
        self.read()

    def read(self) -> None:
        while select.select([self.reads], [], [], 0)[0]:
            chunk = os.read(self.reads, 65536)
            if not chunk:
                return
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            self.received += map(json.loads, whole)

    def until_answered(self, count: int) -> None:
        for _ in range(2000):
            if len(self.received) >= count:
                return
            self.turn()
        raise AssertionError(f"only {[message['id'] for message in self.received]} were answered")

    def close(self) -> None:
        for descriptor in (self.source, self.types, self.reads, self.sink):
            os.close(descriptor)
        for gateway in self.gateways:
            gateway.far.close()
            gateway.line.socket.close()


@pytest.fixture
def setups() -> Iterator[list[Setup]]:
    made: list[Setup] = []
    yield made
    for setup in made:
        setup.close()


class CutAfter:
    """`os.write` that passes this many bytes to one descriptor; then the other end closes, and the kernel refuses the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, descriptor: int, count: int, crash: Callable[[], None]) -> None:
        self._descriptor, self._left, self._crash = descriptor, count, crash
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, descriptor: int, data: bytes | memoryview) -> int:
        if descriptor != self._descriptor or self._crash is None:
            return self._write(descriptor, data)
        if self._left == 0:
            self._crash()
            self._descriptor = -1
            return self._write(descriptor, data)
        count = self._write(descriptor, data[: self._left])
        self._left -= count
        return count


def complete_within(count: int) -> list[Any]:
    """The requests whose last byte is among the first `count` bytes of the burst."""
    found, end = [], 0
    for line in BURST:
        end += len(line)
        if end <= count and b'"id"' in line:
            found.append(json.loads(line)["id"])
    return found


@pytest.mark.parametrize("answers", [False, True], ids=["silent", "answered"])
def test_crash_at_every_byte_loses_and_repeats_nothing(
    setups: list[Setup], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The first gateway gets exactly this many bytes, executes the complete requests, and dies; with `answers` after its answer."""
    for count in range(BYTES):
        with monkeypatch.context() as patch:
            first, second = Gateway(answers=answers), Gateway(answers=True)
            setup = Setup([first, second])
            setups.append(setup)
            CutAfter(patch, first.line.socket.fileno(), count, first.crash)
            os.write(setup.types, b"".join(BURST))
            setup.until_answered(len(REQUESTS))
            setup.turn()
            received = {message["id"]: message for message in setup.received}
            assert Counter(message["id"] for message in setup.received) == Counter(REQUESTS), count
            complete = complete_within(count)
            assert first.executed == complete, count
            lost = [] if answers else complete
            repeated = [each for each in lost if each in REPEATED]
            # Never both: what the first gateway had completely is not sent to the second one, unless it is harmless.
            assert second.executed == repeated + [each for each in REQUESTS if each not in complete], count
            for request_id, message in received.items():
                if request_id in lost and request_id not in REPEATED:
                    expected = None if request_id == 5 else "maybe"
                    assert message["error"]["data"].get("executed") == expected, (count, request_id)
                else:
                    assert message["result"] == {"done": True}, (count, request_id)
            setups.pop().close()


def test_crash_at_every_byte_of_replay_loses_nothing(setups: list[Setup], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gateway dies during the replay of the session: the third one gets a complete replay."""
    opening = [request(0, "initialize", protocolVersion="2025-11-25")]
    opening.append(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}) + b"\n")
    for count in range(0, 400, 3):
        with monkeypatch.context() as patch:
            first, second, third = Gateway(answers=True), Gateway(answers=False), Gateway(answers=True)
            setup = Setup([first, second, third])
            setups.append(setup)
            os.write(setup.types, b"".join(opening))
            setup.until_answered(1)
            while setup.relay._to_gateway.lines or first.rest:
                setup.turn()
            CutAfter(patch, second.line.socket.fileno(), count, second.crash)
            first.crash()
            os.write(setup.types, request(1, REPEATABLE) + request(2, name="charge"))
            while setup.reached < 3 and 2 not in second.executed:
                setup.turn()
            if second.far.fileno() != -1:
                second.crash()
            setup.until_answered(3)
            setup.turn()
            assert Counter(message["id"] for message in setup.received) == Counter([0, 1, 2]), count
            own = [each for each in third.executed if str(each).startswith("taskgate-bridge")]
            assert own == ["taskgate-bridge-3-0"], count
            assert (second.executed + third.executed).count(2) == 1, count
            setups.pop().close()


def test_lost_call_is_answered_before_reconnecting(setups: list[Setup]) -> None:
    first = Gateway(answers=False)
    seen: list[Any] = []

    def reach(_wait: Wait) -> GatewayConnection:
        setup.read()
        seen.extend(message["id"] for message in setup.received)
        raise NoGateway("There is no gateway.")

    setup = Setup([first], reach)
    setups.append(setup)
    os.write(setup.types, request(1, name="charge"))
    while not first.executed:
        setup.turn()
    first.crash()
    setup.until_answered(1)
    assert seen == [1]
    assert setup.received[0]["error"]["data"]["executed"] == "maybe"


def test_lost_calls_reach_slow_client_while_new_gateway_starts(setups: list[Setup]) -> None:
    """More answers than the client's pipe holds: the rest is written while the start of the gateway is waited for."""
    first, second = Gateway(answers=False), Gateway(answers=True)
    calls = 4000
    answered_meanwhile = 0

    def reach(wait: Wait) -> GatewayConnection:
        nonlocal answered_meanwhile
        begins, ready = os.pipe()
        for _ in range(10_000):
            wait(None, 0.0005)
            setup.read()
            if len(setup.received) == calls:
                break
        answered_meanwhile = len(setup.received)
        os.write(ready, b"x")
        assert wait(begins, WAIT_S)
        os.close(begins)
        os.close(ready)
        setup.reached = 2
        return second.line

    setup = Setup([first, second], reach)
    setups.append(setup)
    burst = b"".join(request(number, name="charge") for number in range(calls))
    while burst:
        burst = burst[os.write(setup.types, burst[:60_000]) :]
        while setup.relay._to_gateway.lines or select.select([setup.source], [], [], 0)[0]:
            setup.turn()
    while len(first.executed) < calls:
        setup.turn()
    first.crash()
    setup.relay._turn(0.0)
    assert answered_meanwhile == calls
    assert {message["error"]["data"]["executed"] for message in setup.received} == {"maybe"}


def test_unreachable_gateway_leaves_no_claim_about_earlier_calls(setups: list[Setup]) -> None:
    first = Gateway(answers=False)
    setup = Setup([first])
    setups.append(setup)
    sent = {
        1: request(1, "tasks/get", taskId="tg_1"),
        2: request(2, "tasks/result", taskId="tg_1"),
        3: request(3, "tasks/cancel", taskId="tg_1"),
        4: request(4, name="get_task_result", arguments={"task_id": "tg_1"}),
        5: request(5, name="call_tool", arguments={"name": "cancel_task", "arguments": {}}),
    }
    os.write(setup.types, b"".join(sent.values()))
    while len(first.executed) < len(sent):
        setup.turn()
    first.crash()
    setup.until_answered(len(sent))
    later = {
        6: request(6, "tasks/get", taskId="tg_1"),
        7: request(7, name="get_task", arguments={"task_id": "tg_1"}),
        8: request(8, name="charge", requestState="s", inputResponses={}),
        9: request(9, name="charge"),
        10: request(10, "tools/list"),
    }
    os.write(setup.types, b"".join(later.values()))
    setup.until_answered(len(sent) + len(later))
    executed = {message["id"]: message["error"]["data"].get("executed") for message in setup.received}
    assert executed == {**dict.fromkeys([*sent, 6, 7]), 8: "maybe", 9: "no", 10: "no"}


def test_requests_beyond_limit_are_rejected_and_none_is_lost(
    setups: list[Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskgate.bridge.pending.MAX_OPEN", 3)
    first, second = Gateway(answers=False), Gateway(answers=True)
    setup = Setup([first, second])
    setups.append(setup)
    for number in range(5):
        os.write(setup.types, request(number, name="charge"))
        while select.select([setup.source], [], [], 0)[0] or setup.relay._to_gateway.lines:
            setup.turn()
    refused = {message["id"]: message["error"]["data"] for message in setup.received}
    assert {key: (data["error_type"], data["executed"]) for key, data in refused.items()} == {
        3: ("overloaded", "no"),
        4: ("overloaded", "no"),
    }
    first.crash()
    setup.until_answered(5)
    assert sorted(message["id"] for message in setup.received) == [0, 1, 2, 3, 4]


def test_crash_after_end_of_client_input_answers_every_request(setups: list[Setup]) -> None:
    """`printf ... | taskgate stdio`: the input has ended, but replies are still read."""
    first = Gateway(answers=False)
    setup = Setup([first])
    setups.append(setup)
    os.write(setup.types, request(1, name="charge") + request(2, REPEATABLE))
    while len(first.executed) < 2:
        setup.turn()
    os.close(setup.types)
    setup.types = os.open(os.devnull, os.O_RDONLY)
    first.crash()
    setup.relay.run()
    setup.read()
    executed = {message["id"]: message["error"]["data"].get("executed") for message in setup.received}
    assert executed == {1: "maybe", 2: "no"}


def test_client_that_closed_its_output_ends_relay(setups: list[Setup]) -> None:
    first = Gateway(answers=False)
    setup = Setup([first])
    setups.append(setup)
    os.write(setup.types, request(1, name="charge"))
    while not first.executed:
        setup.turn()
    os.close(setup.reads)
    setup.reads = os.open(os.devnull, os.O_RDONLY)
    first.crash()
    with pytest.raises(ClientGone):
        setup.relay.run()


def test_initialized_notification_outlives_unreachable_gateway(
    setups: list[Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was queued when no gateway could be reached: the next gateway gets it with the replayed opening."""
    monkeypatch.setattr(relays, "CRASHES", 100)
    first, second = Gateway(answers=True), Gateway(answers=True)
    setup = Setup([first, second])
    setups.append(setup)
    os.write(setup.types, request(0, "initialize"))
    setup.until_answered(1)
    setup.gateways = [first]
    first.crash()
    os.write(setup.types, encode({"jsonrpc": "2.0", "method": "notifications/initialized"}) + b"\n")
    os.write(setup.types, request(1, name="charge"))
    setup.until_answered(2)
    setup.gateways, setup.reached = [first, second], 1
    os.write(setup.types, request(2, name="charge"))
    setup.until_answered(3)
    assert [each for each in second.executed if each != 2] == ["taskgate-bridge-2-0"]
    assert "notifications/initialized" in setup.relay._pending._session_setup
