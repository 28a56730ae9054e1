"""One HTTP/1.1 connection: an asyncio protocol that carries one exchange at a time.

Everything happens in callbacks; an exchange is one Future and no task. The write buffer limit is set to nothing, so the
event loop tells us with `pause_writing` and `resume_writing` whether the whole request has been handed to the kernel.
A connection that breaks is always *aborted*: a close would still flush the rest of a request that we have just declared
not sent. One lazy timer serves the deadline, the idle limit and the drain limit in turn. The pool owns connections, the
client starts exchanges on them.
"""

from __future__ import annotations

import asyncio
import errno
import math
import select
import socket
import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, cast

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnEvent, OnHead, ReplyProblem, ReplyReader

_PEER_CLOSED: int = getattr(select, "POLLRDHUP", 0)
_HUNG_UP = select.POLLHUP | select.POLLERR | _PEER_CLOSED
_DRAIN_BYTES = 64 * 1024
_DRAIN_S = 1.0
_PARTIAL_BYTES = 2048
# Event loops round timers to a millisecond; what is due that soon is due now.
_TIMER_SLACK_S = 0.002


class Phase(Enum):
    """What the connection is doing."""

    IDLE = auto()
    BUSY = auto()
    DRAINING = auto()
    CLOSED = auto()


class HttpConnection(asyncio.Protocol):
    """See the module. `on_free` and `on_lost` report to the pool."""

    __slots__ = (
        "_catching_up", "_deadline", "_drained", "_due", "_ended_properly", "_future", "_idle_s", "_keep_s", "_loop",
        "_lost_because", "_on_free", "_on_lost", "_phase", "_poll", "_reader", "_room", "_timer", "_timer_at", "_tls",
        "_transport", "_unsent",
    )  # fmt: skip

    def __init__(
        self,
        reader: ReplyReader,
        *,
        tls: bool,
        keep_s: float,
        on_free: Callable[[HttpConnection], None],
        on_lost: Callable[[HttpConnection], None],
    ) -> None:
        self._phase = Phase.IDLE
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._poll = select.poll()
        self._tls = tls
        self._keep_s = keep_s
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._future: asyncio.Future[HttpReply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = self._deadline = math.inf
        self._idle_s: float | None = None
        self._unsent = False
        self._drained = 0
        self._catching_up = False
        """Reading goes on in the next turn of the loop."""
        self._room: asyncio.Future[None] | None = None
        """Done when the stream can be passed on further; nothing is read before that."""
        self._ended_properly = False
        """The peer closed its end; the connection did not break."""
        self._lost_because: str | None = None
        """Why the connection was lost while some of what had arrived was not read yet."""

    # What the pool and the client ask for.

    def is_usable(self) -> bool:
        """False once the peer has closed or said something unasked, or it was kept for too long: also where the loop was held up
        and has not yet noticed."""
        if self._phase is not Phase.IDLE or self._transport is None or self._transport.is_closing():
            return False
        if clock.monotonic() >= self._due:
            return False
        news = self._poll.poll(0)
        # A TLS peer may have sent a session ticket, which is no answer to anything.
        return not news or (self._tls and not news[0][1] & _HUNG_UP)

    def begin(
        self,
        request: bytes,
        *,
        due: float,
        idle_s: float | None,
        on_head: OnHead | None,
        on_event: OnEvent | None,
        on_chunk: OnChunk | None = None,
    ) -> asyncio.Future[HttpReply]:
        """Write the request; the Future is the reply or an HttpFailure. The connection must be usable."""
        transport = cast(asyncio.Transport, self._transport)
        self._future = future = self._loop.create_future()
        self._reader.start(on_head, on_event, on_chunk)
        self._idle_s, self._deadline = idle_s, due
        self._phase = Phase.BUSY
        transport.write(request)
        if transport.is_closing():
            # The very write failed, so the kernel did not take all of it.
            self._unsent = True
        self._watch(due if idle_s is None else min(due, clock.monotonic() + idle_s))
        return future

    def adopt_limits(self) -> None:
        self._reader.adopt_limits()

    def tells(self, on_event: OnEvent) -> bool:
        return self._phase is Phase.BUSY and self._reader.tells(on_event)

    def abandon(self, future: asyncio.Future[HttpReply]) -> None:
        """The one who waited went away: hang up, which is how the peer learns of it."""
        if self._future is future:
            self._future = None
            self.abort()

    def abort(self) -> None:
        """Hang up without flushing; an exchange under way fails."""
        self._fail(self._broken_stage(), "the connection was closed by us")

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0, low=0)
        self._poll.register(transport.get_extra_info("socket"), select.POLLIN | _PEER_CLOSED)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.DRAINING:
            self._drained += len(data)
            if self._drained > _DRAIN_BYTES:
                self.abort()
                return
        elif self._phase is not Phase.BUSY:
            self.abort()
            return
        if self._catching_up:
            self._reader.keep(data)
        else:
            self._read(data)

    def _read(self, data: bytes | None) -> None:
        """Read what has arrived, or go on with what was left of it in the last turn."""
        reader = self._reader
        try:
            if data is None:
                reader.catch_up()
            else:
                reader.feed(data)
        except ReplyProblem as problem:
            self._fail(problem.stage, problem.message)
        except Exception as error:
            # Around one exchange: a listener that raises ends its own exchange, with its own exception.
            self._fail_with(error)
        else:
            if reader.complete:
                self._end_reply()
                return
            if self._phase is Phase.BUSY:
                self._go_on()
            if reader.is_behind or self._room is not None:
                self._read_later()

    def _read_later(self) -> None:
        """One turn of the loop does not allow more, or the stream cannot be passed on yet. Until then nothing is read."""
        self._catching_up = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if self._room is None:
            self._loop.call_soon(self._catch_up)
        else:
            self._room.add_done_callback(self._has_room)

    def _has_room(self, _room: asyncio.Future[None]) -> None:
        self._room = None
        self._catch_up()

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._phase in (Phase.BUSY, Phase.DRAINING):
            self._read(None)
        if self._catching_up:
            return
        if self._lost_because is not None:
            self._let_go(self._lost_because)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        self._ended_properly = True
        if self._catching_up:
            # What came before the end counts, and may be the answer. `connection_lost` follows.
            return
        self._end_with_connection("the peer closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        why = "the connection broke" if exc is None else f"the connection broke: {exc}"
        self._transport = None
        if self._catching_up and self._phase is Phase.BUSY:
            self._lost_because = why
        else:
            self._let_go(why)

    def _let_go(self, why: str) -> None:
        """The connection is gone, and everything that came before is read."""
        self._end_with_connection(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reader.close()
        self._on_lost(self)

    def _end_with_connection(self, why: str) -> None:
        if self._phase is Phase.BUSY and self._ended_properly and self._reader.ends_with_connection():
            self._end_reply()
        else:
            self._fail(self._broken_stage(), why)

    # How an exchange goes on and ends.

    def _go_on(self) -> None:
        if self._reader.held_up is not None:
            self._room = self._reader.take_held_up()
        if self._reader.stopped:
            self._answer()
            self._phase = Phase.DRAINING
            self._drained = 0
            self._watch(clock.monotonic() + _DRAIN_S)
        elif self._idle_s is not None:
            self._watch(min(self._deadline, clock.monotonic() + self._idle_s))

    def _end_reply(self) -> None:
        if self._phase is Phase.BUSY:
            self._answer()
        if not self._reader.keep_alive or self._unsent or self._transport is None:
            self.abort()
            return
        self._phase = Phase.IDLE
        head = self._reader.head
        hint = head.headers.get(b"keep-alive") if head is not None else None
        self._watch(clock.monotonic() + (self._keep_s if hint is None else self._keep_for(hint)))
        self._on_free(self)

    def _answer(self) -> None:
        future, self._future = self._future, None
        reader = self._reader
        head = reader.head
        if future is not None and head is not None and not future.done():
            body = reader.take_body()
            future.set_result(
                HttpReply(head.status, head.headers, head.header_list, body, reader.stopped, not self._unsent)
            )

    def _fail(self, stage: Stage, message: str) -> None:
        if self._phase is Phase.CLOSED:
            return
        status = self._reader.head.status if self._reader.head is not None else None
        executed = Executed.NO if self._unsent else Executed.MAYBE
        partial = self._reader.take_body()[:_PARTIAL_BYTES]
        self._fail_with(HttpFailure(stage, message, executed, status=status, partial=partial))

    def _fail_with(self, error: Exception) -> None:
        self._phase = Phase.CLOSED
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _broken_stage(self) -> Stage:
        if self._unsent:
            return Stage.WRITE
        return Stage.AWAIT_HEAD if self._reader.head is None else Stage.READ_BODY

    # The one timer.

    def _keep_for(self, hint: bytes) -> float:
        """How long to stay open unused: less than the peer announces, or we would write into a closing connection."""
        announced = hint.lower().partition(b"timeout=")[2].partition(b",")[0].strip()
        return min(self._keep_s, max(int(announced) - 1.0, 0.2)) if announced.isdigit() else self._keep_s

    def _watch(self, due: float) -> None:
        """Ring at `due`. A timer that rings earlier is left alone and looks again, so most exchanges set none."""
        self._due = due
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._ring)
            self._timer_at = due

    def _ring(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = clock.monotonic()
        if self._due - now > _TIMER_SLACK_S:
            self._watch(self._due)
        elif self._deadline - now > _TIMER_SLACK_S:
            self._fail(Stage.DEADLINE, f"the peer was silent for {self._idle_s} seconds")
        else:
            self._fail(Stage.DEADLINE, "the deadline passed before the reply was complete")


# Why there is no connection, in words for who may not know where it would have led.

NO_ANSWER: Final = "no answer in time"
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it",
    errno.ENOENT: "no such socket",
    errno.EACCES: "access denied",
    errno.ETIMEDOUT: NO_ANSWER,
}
_CERTIFICATE_ENDED: Final = 10
_CERTIFICATE_OF_ANOTHER: Final = (62, 64)
"""Of another name or number, as OpenSSL counts its complaints (X509_V_ERR_*)."""


def reason_of(error: OSError | UnicodeError) -> str:
    """Why there is no connection, in words that name no address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _CERTIFICATE_ENDED:
            return "TLS certificate expired"
        wrong = error.verify_code in _CERTIFICATE_OF_ANOTHER
        return "TLS certificate of another host" if wrong else "TLS certificate not trusted"
    if isinstance(error, ssl.SSLError):
        return "TLS handshake failed"
    if isinstance(error, (UnicodeError, socket.gaierror)):
        return "no such name"
    return _BY_NUMBER.get(error.errno or 0, "")
