"""Relay lines between the client's standard streams and the gateway until the client disconnects.

One loop on `poll`, with bounded buffers in both directions: if one side does not read, the other is not read either. A
line of the client is *pending* once it was written to a gateway completely, and *queued* before. After the gateway's
death a pending request is answered (or sent again, if it is idempotent) and a queued line goes to the next gateway;
never both, never neither.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable

from taskgate.bridge.errors import failure, gateway_crashed, gateway_unreachable, overloaded
from taskgate.bridge.gateway_files import monotonic
from taskgate.bridge.handshake import CLOSING, STOPPED
from taskgate.bridge.lines import AT_ONCE_BYTES, Buffer, Splitter
from taskgate.bridge.pending import Pending, Sent, unsent
from taskgate.bridge.starter import GatewayConnection, NoGateway, Wait

FULL_BYTES = 1 << 20
LONGEST_LINE = 64 << 20
LONGEST_REPLY = 256 << 20
FINISH_S = 5.0
CRASHES, CRASH_WINDOW_S, CRASH_PAUSE_S = 3, 30.0, 10.0
ENDED = "The local gateway has ended."


class ClientGone(Exception):
    """The client does not accept output any more."""


class Relay:
    def __init__(
        self, line: GatewayConnection, reach: Callable[[Wait], GatewayConnection], log_path: str, source: int, sink: int
    ) -> None:
        """`reach` finds or starts the next gateway and raises NoGateway or OSError; `source` and `sink` belong to the client."""
        self._reach, self._log_path = reach, log_path
        self._source, self._sink = source, sink
        self._pending = Pending()
        self._again: list[Sent] = []
        self._replays, self._to_gateway, self._to_client = Buffer(), Buffer(), Buffer()
        self._from_client, self._from_gateway = Splitter(LONGEST_LINE), Splitter(LONGEST_REPLY)
        self._ends: deque[float] = deque(maxlen=CRASHES)
        self._connections = 1
        self._client_done = False
        self._closing = ""
        self._gateway: GatewayConnection | None = line
        self._take_replies(line.rest)

    def run(self) -> None:
        """Relay until the client disconnects. Raises ClientGone if it does not accept output any more."""
        while not self._client_done:
            self._turn(None)
        self._finish()

    def _turn(self, timeout_s: float | None) -> None:
        poll = select.poll()
        if self._to_gateway.size < FULL_BYTES and not self._client_done:
            poll.register(self._source, select.POLLIN)
        if self._to_client.lines:
            poll.register(self._sink, select.POLLOUT)
        if self._gateway is not None:
            reads = select.POLLIN if self._to_client.size < FULL_BYTES else 0
            writes = select.POLLOUT if self._replays.lines or self._to_gateway.lines else 0
            poll.register(self._gateway.socket, reads | writes)
        for descriptor, event in poll.poll(timeout_s * 1000 if timeout_s is not None else None):
            if descriptor == self._source:
                self._read_client()
            elif descriptor == self._sink:
                self._write_client()
            elif self._gateway is not None and descriptor == self._gateway.socket.fileno():
                self._gateway_event(event)
        if self._gateway is None and self._to_gateway.lines and not self._client_done:
            self._reconnect()

    def _gateway_event(self, event: int) -> None:
        """Read first: a gateway that closed the connection may have sent the reason."""
        if event & ~select.POLLOUT:
            self._read_gateway()
        if event & select.POLLOUT and self._gateway is not None:
            self._write_gateway()

    def _read_client(self) -> None:
        try:
            chunk = os.read(self._source, AT_ONCE_BYTES)
        except OSError:
            chunk = b""
        self._client_done = not chunk
        for line in self._from_client.feed(chunk):
            self._queue(line)
        if self._from_client.dropped_one():
            message = f"The message exceeds {LONGEST_LINE} bytes. It was not executed."
            self._to_client.add(failure(Sent(b"null", "", False, None), "request_too_large", message, "no"))

    def _queue(self, line: bytes) -> None:
        request = unsent(line) if self._pending.is_full else None
        if request is None:
            self._to_gateway.add(line)
        else:
            self._to_client.add(overloaded(request))

    def _write_client(self) -> None:
        try:
            self._to_client.write(self._sink)
        except OSError:
            raise ClientGone from None

    def _write_gateway(self) -> None:
        assert self._gateway is not None
        descriptor = self._gateway.socket.fileno()
        try:
            self._replays.write(descriptor, self._pending.sent)
            if not self._replays.lines:
                self._to_gateway.write(descriptor, self._pending.sent)
        except OSError:
            self._read_rest()
            self._lost()

    def _read_gateway(self) -> None:
        assert self._gateway is not None
        try:
            chunk = self._gateway.socket.recv(AT_ONCE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._take_replies(chunk)
        if not chunk or self._from_gateway.too_long:
            self._lost()

    def _read_rest(self) -> None:
        """Read the remaining responses of a gateway that does not accept input any more."""
        assert self._gateway is not None
        read = 0
        while read < FULL_BYTES:
            try:
                chunk = self._gateway.socket.recv(AT_ONCE_BYTES)
            except OSError:
                return
            if not chunk:
                return
            read += len(chunk)
            self._take_replies(chunk)

    def _take_replies(self, chunk: bytes) -> None:
        for line in self._from_gateway.feed(chunk):
            if line.startswith(CLOSING):
                self._closing = line[len(CLOSING) :].decode("ascii", "replace").strip()
                continue
            if self._pending.received(line):
                self._to_client.add(line)

    def _lost(self) -> None:
        """Handle the end of the gateway: answer requests that may have been executed, keep idempotent ones, and reconnect.

        A gateway that was stopped on purpose is started again only when the client sends a line.
        """
        assert self._gateway is not None
        self._gateway.socket.close()
        self._gateway = None
        why, self._closing = self._closing, ""
        if not why:
            self._ends.append(monotonic())
        self._replays = Buffer()
        self._to_gateway.start_over()
        self._from_gateway = Splitter(LONGEST_REPLY)
        self._again, over = self._pending.lost()
        for sent in over:
            self._to_client.add(gateway_crashed(sent))
        # The client receives these before a new gateway is started, which may take long.
        self._write_client()
        if self._client_done:
            self._give_up(ENDED)
        elif why != STOPPED or self._again:
            self._reconnect()

    def _reconnect(self) -> None:
        """Find or start a gateway, and set up the session of the last one."""
        now = monotonic()
        if len(self._ends) == CRASHES and now - self._ends[0] < CRASH_WINDOW_S and now - self._ends[-1] < CRASH_PAUSE_S:
            self._give_up(f"The local gateway ended repeatedly. Log: {self._log_path}")
            return
        try:
            self._gateway = self._reach(self._wait)
        except (NoGateway, OSError) as problem:
            self._ends.append(monotonic())
            self._give_up(str(problem))
            return
        self._connections += 1
        self._replays = Buffer(self._pending.replay(f"taskgate-bridge-{self._connections}", self._again))
        self._to_gateway.add_first([sent.line for sent in self._again if sent.line is not None])
        self._again = []
        self._take_replies(self._gateway.rest)

    def _wait(self, descriptor: int | None, seconds: float) -> bool:
        """Wait until the descriptor is readable, and write to the client meanwhile. Return False on timeout."""
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0:
            poll = select.poll()
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
            if self._to_client.lines:
                poll.register(self._sink, select.POLLOUT)
            ready = [found for found, _ in poll.poll(left * 1000)]
            if self._sink in ready:
                self._write_client()
            if descriptor in ready:
                return True
        return False

    def _give_up(self, why: str) -> None:
        """Answer everything that waits with an error, because there is no gateway. The next request tries again."""
        queued, self._to_gateway = self._to_gateway.lines, Buffer()
        waiting, self._again = [(sent, True) for sent in self._again], []
        for line in queued:
            request = unsent(line)
            if request is not None:
                waiting.append((request, False))
            else:
                self._pending.dropped(line)
        for sent, was_sent in waiting:
            self._pending.forget(sent)
            self._to_client.add(gateway_unreachable(sent, why, was_sent=was_sent))

    def _finish(self) -> None:
        """Flush both directions after the client has disconnected."""
        deadline = monotonic() + FINISH_S
        reported = False
        while (self._gateway is not None or self._to_client.lines) and monotonic() < deadline:
            if self._gateway is not None and not self._replays.lines and not self._to_gateway.lines and not reported:
                reported = True
                try:
                    self._gateway.socket.shutdown(1)
                except OSError:
                    self._read_rest()
                    self._lost()
                    continue
            self._turn(max(0.0, deadline - monotonic()))
