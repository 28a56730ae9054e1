"""`taskgate stdio`, as far as it needs no gateway in this process: its few options, the streams, and its exit codes."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections import deque

from taskgate.bridge.meeting import GOODBYE, STOPPED, Meeting, monotonic
from taskgate.bridge.pending import Pending, Sent, failure, unsent
from taskgate.bridge.starter import Line, NoGateway, reach
from taskgate.folders import find_config, state_folder

# Carries whole lines between the client's standard streams and the gateway, until the client hangs up.
#
# One loop on `poll`, with bounded buffers both ways: a side that does not read stops the other from being read. A line
# is handed on only when it is complete, so that a gateway that dies in the middle of one leaves nothing half-said on
# either side.

AT_ONCE_BYTES = 256 * 1024


class Buffer:
    """Lines that wait to be written, counted in bytes."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self.size = 0
        self._offset = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)

    def start_over(self) -> None:
        """Whoever got the first half of a line is gone."""
        self._offset = 0

    def write(self, descriptor: int) -> list[bytes]:
        """Write what can be written; the lines that are out completely."""
        done: list[bytes] = []
        while self.lines:
            line = self.lines[0]
            try:
                self._offset += os.write(descriptor, memoryview(line)[self._offset : self._offset + AT_ONCE_BYTES])
            except BlockingIOError:
                break
            if self._offset >= len(line):
                self.lines.popleft()
                self.size -= len(line)
                self._offset = 0
                done.append(line)
        return done


class Splitter:
    """Chunks in, whole lines out, with their newlines. A line beyond the limit is dropped, and `too_long` says so."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.too_long = False

    def feed(self, chunk: bytes) -> list[bytes]:
        whole: list[bytes] = []
        pieces = chunk.split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            self._keep(piece)
            if self._parts:
                whole.append(b"".join(self._parts) + b"\n")
            self._parts, self._size = [], 0
        self._keep(rest)
        return whole

    def dropped_one(self) -> bool:
        """Whether a line was dropped since this was last asked."""
        dropped, self.too_long = self.too_long, False
        return dropped

    def _keep(self, piece: bytes) -> None:
        known = self._size > self._limit
        self._size += len(piece)
        if self._size > self._limit:
            self._parts, self.too_long = [], self.too_long or not known
        elif piece:
            self._parts.append(piece)


FULL_BYTES = 1 << 20
LONGEST_LINE = 64 << 20
LONGEST_REPLY = 256 << 20
LAST_WORDS_S = 5.0
CRASHES, CRASH_WINDOW_S, LEAVE_ALONE_S = 3, 30.0, 10.0
STDIN, STDOUT = 0, 1
MAYBE = "The local gateway ended while this call was under way. It may or may not have taken effect."
TWICE = "The local gateway ended while it answered this, twice. It was not executed."


class HungUp(Exception):
    """The client cannot be written to any more."""


class Relay:
    def __init__(self, meeting: Meeting, scope: str | None, line: Line) -> None:
        self._meeting, self._scope = meeting, scope
        self._pending = Pending()
        self._again: list[Sent] = []
        self._to_gateway, self._to_client = Buffer(), Buffer()
        self._from_client, self._from_gateway = Splitter(LONGEST_LINE), Splitter(LONGEST_REPLY)
        self._ends: deque[float] = deque(maxlen=CRASHES)
        self._lives = 1
        self._client_done = False
        self._why_gone = ""
        self._line: Line | None = line
        self._take_replies(line.rest)

    def run(self) -> None:
        """Until the client hangs up. Raises HungUp if it cannot be written to any more."""
        while not self._client_done:
            self._turn(None)
        self._finish()

    def _turn(self, timeout_s: float | None) -> None:
        poll = select.poll()
        if self._to_gateway.size < FULL_BYTES and not self._client_done:
            poll.register(STDIN, select.POLLIN)
        if self._to_client.lines:
            poll.register(STDOUT, select.POLLOUT)
        if self._line is not None:
            reads = select.POLLIN if self._to_client.size < FULL_BYTES else 0
            poll.register(self._line.socket, reads | (select.POLLOUT if self._to_gateway.lines else 0))
        for descriptor, event in poll.poll(timeout_s * 1000 if timeout_s is not None else None):
            if descriptor == STDIN:
                self._read_client()
            elif descriptor == STDOUT:
                self._write_client()
            elif self._line is not None and descriptor == self._line.socket.fileno():
                self._gateway_event(event)
        if self._line is None and self._to_gateway.lines and not self._client_done:
            self._reconnect()

    def _gateway_event(self, event: int) -> None:
        """Read first: a gateway that hung up may have said why."""
        if event & ~select.POLLOUT:
            self._read_gateway()
        if event & select.POLLOUT and self._line is not None:
            self._write_gateway()

    def _read_client(self) -> None:
        try:
            chunk = os.read(STDIN, AT_ONCE_BYTES)
        except OSError:
            chunk = b""
        self._client_done = not chunk
        for line in self._from_client.feed(chunk):
            self._to_gateway.add(line)
        if self._from_client.dropped_one():
            message = f"A message may have at most {LONGEST_LINE} bytes. It was not executed."
            self._to_client.add(failure(Sent(b"null", "", False, None), "request_too_large", message, "no"))

    def _write_client(self) -> None:
        try:
            self._to_client.write(STDOUT)
        except OSError:
            raise HungUp from None

    def _write_gateway(self) -> None:
        assert self._line is not None
        try:
            written = self._to_gateway.write(self._line.socket.fileno())
        except OSError:
            self._lost()
            return
        for line in written:
            self._pending.sent(line)

    def _read_gateway(self) -> None:
        assert self._line is not None
        try:
            chunk = self._line.socket.recv(AT_ONCE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._take_replies(chunk)
        if not chunk or self._from_gateway.too_long:
            self._lost()

    def _take_replies(self, chunk: bytes) -> None:
        for line in self._from_gateway.feed(chunk):
            if line.startswith(GOODBYE):
                self._why_gone = line[len(GOODBYE) :].decode("ascii", "replace").strip()
                continue
            if self._pending.received(line):
                self._to_client.add(line)

    def _lost(self) -> None:
        """The gateway hung up: answer what may have been executed, keep what can be asked again, and find another.

        One that was stopped on purpose is started again only when the client wants something.
        """
        assert self._line is not None
        self._line.socket.close()
        self._line = None
        why, self._why_gone = self._why_gone, ""
        if not why:
            self._ends.append(monotonic())
        self._to_gateway.start_over()
        self._from_gateway = Splitter(LONGEST_REPLY)
        self._again, over = self._pending.lost()
        for sent in over:
            message, executed = (TWICE, "no") if sent.again else (MAYBE, "maybe")
            self._to_client.add(failure(sent, "outcome_unknown", message, executed))
        if (why != STOPPED or self._again) and not self._client_done:
            self._reconnect()

    def _reconnect(self) -> None:
        """Find or start a gateway, and bring it to where the last one was."""
        now = monotonic()
        if len(self._ends) == CRASHES and now - self._ends[0] < CRASH_WINDOW_S and now - self._ends[-1] < LEAVE_ALONE_S:
            self._give_up(f"The local gateway keeps ending. Its log: {self._meeting.log_path}")
            return
        try:
            self._line = reach(self._meeting, self._scope)
        except (NoGateway, OSError) as problem:
            self._ends.append(monotonic())
            self._give_up(str(problem))
            return
        self._lives += 1
        waiting, self._to_gateway = self._to_gateway, Buffer()
        replayed = self._pending.replay(f"taskgate-bridge-{self._lives}", self._again)
        asked_again = (sent.line for sent in self._again if sent.line is not None)
        for line in (*replayed, *asked_again, *waiting.lines):
            self._to_gateway.add(line)
        self._again = []
        self._take_replies(self._line.rest)

    def _give_up(self, why: str) -> None:
        """No gateway for now: what waits was not executed, and is answered so. The next request tries again."""
        waiting = [*self._again, *(sent for sent in map(unsent, self._to_gateway.lines) if sent is not None)]
        self._again, self._to_gateway = [], Buffer()
        for sent in waiting:
            self._pending.forget(sent)
            self._to_client.add(failure(sent, "gateway_unreachable", f"{why} It was not executed.", "no"))

    def _finish(self) -> None:
        """The client hung up: let the gateway have what was said, and the client what is still answered."""
        deadline = monotonic() + LAST_WORDS_S
        told = False
        while (self._line is not None or self._to_client.lines) and monotonic() < deadline:
            if self._line is not None and not self._to_gateway.lines and not told:
                told = True
                try:
                    self._line.socket.shutdown(1)
                except OSError:
                    self._lost()
                    continue
            self._turn(max(0.0, deadline - monotonic()))


FIRST_LINE_S = 1.0
_OPTIONS = {"-c": "config", "--config": "config", "--scope": "scope"}


def options(words: list[str]) -> dict[str, str] | None:
    """The options of a plain `taskgate stdio`; None if there is anything that the whole command line must look at."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        key = _OPTIONS.get(name)
        if key is None:
            return None
        given = value if equals else next(rest, None)
        if given is None:
            return None
        found[key] = given
    return found


def bridge(config: str | None, scope: str | None) -> int:
    """Join the client's streams to the local gateway until the client hangs up; the exit code."""
    try:
        meeting = Meeting(state_folder(os.environ), find_config(config, os.environ))
        line = reach(meeting, scope)
    except NoGateway as problem:
        return _refuse(str(problem), problem.code)
    except OSError as problem:
        return _refuse(f"The state folder cannot be used: {problem.strerror or problem}. Set TASKGATE_STATE_DIR.", 3)
    blocking = _without_blocking()
    try:
        Relay(meeting, scope, line).run()
    except (HungUp, KeyboardInterrupt):
        return 0
    finally:
        if blocking:
            os.set_blocking(STDOUT, True)
    return 0


def _without_blocking() -> bool:
    """A pipe or socket may be full; a file or terminal may not be changed for those who share it."""
    kind = os.fstat(STDOUT).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) or not os.get_blocking(STDOUT):
        return False
    os.set_blocking(STDOUT, False)
    return True


def _refuse(why: str, code: int) -> int:
    """Nothing can be served: say so where people look, and to the client if it asks within a moment."""
    import select

    sys.stderr.write(f"taskgate: {why}\n")
    sys.stderr.flush()
    if not os.isatty(STDIN) and select.select([STDIN], [], [], FIRST_LINE_S)[0]:
        first = os.read(STDIN, 65536).partition(b"\n")[0]
        asked = unsent(first)
        if asked is not None:
            os.write(STDOUT, failure(asked, "gateway_unreachable", f"{why} It was not executed.", "no"))
    return code
