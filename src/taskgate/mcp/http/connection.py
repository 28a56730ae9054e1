"""One HTTP/1.1 client connection: an asyncio protocol with one exchange at a time.

Everything runs in callbacks; an exchange is one Future and no task. The write buffer limit is zero, so `pause_writing`
and `resume_writing` report whether the whole request was handed to the kernel. A failed connection is always *aborted*:
closing it would still flush the rest of a request that was just reported as not sent. One lazily armed timer serves the
deadline, the idle limit and the drain limit. The pool owns the connections; the client starts exchanges on them.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, cast

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnEvent, OnHead, ReplyProblem, ReplyReader

_PEER_CLOSED: int = getattr(select, "POLLRDHUP", 0)
_DISCONNECTED = select.POLLHUP | select.POLLERR | _PEER_CLOSED
_DRAIN_BYTES = 64 * 1024
_DRAIN_S = 1.0
_PARTIAL_BYTES = 2048
# Event loops round timers to a millisecond, so a timer may run this much early.
_TIMER_SLACK_S = 0.002


class Phase(Enum):
    """The state of the connection."""

    IDLE = auto()
    BUSY = auto()
    DRAINING = auto()
    CLOSED = auto()


_IDLE: Final = Phase.IDLE
_BUSY: Final = Phase.BUSY
_DRAINING: Final = Phase.DRAINING
_CLOSED: Final = Phase.CLOSED
"""Constants, because on Python 3.11 looking up a member of an Enum costs as much as calling a function."""


class HttpConnection(asyncio.Protocol):
    """A connection of a pool, which receives `on_free` and `on_lost`."""

    __slots__ = (
        "_backpressure",
        "_catching_up",
        "_deadline",
        "_drained",
        "_due",
        "_eof_received",
        "_future",
        "_idle_s",
        "_keep_s",
        "_loop",
        "_lost_reason",
        "_on_free",
        "_on_lost",
        "_phase",
        "_poll",
        "_reader",
        "_timer",
        "_timer_at",
        "_tls",
        "_transport",
        "_unsent",
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
        self._phase = _IDLE
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
        """Reading continues in the next iteration of the loop."""
        self._backpressure: asyncio.Future[None] | None = None
        """Set while the receiver of a passed-through stream cannot take more; reading resumes when it is done."""
        self._eof_received = False
        """The peer closed the connection cleanly."""
        self._lost_reason: str | None = None
        """Why the connection was lost, while received data is still unread."""

    # Used by the pool and the client.

    def is_usable(self) -> bool:
        """Return False if the peer closed the connection or sent unexpected data, or its idle time is over.

        The socket is polled, because a busy event loop may not have processed these events yet.
        """
        if self._phase is not _IDLE or self._transport is None or self._transport.is_closing():
            return False
        if clock.monotonic() >= self._due:
            return False
        news = self._poll.poll(0)
        # A TLS peer may have sent a session ticket, which is not a reply.
        return not news or (self._tls and not news[0][1] & _DISCONNECTED)

    def begin(
        self,
        request: bytes,
        due: float,
        on_event: OnEvent | None = None,
        *,
        idle_s: float | None = None,
        on_head: OnHead | None = None,
        on_chunk: OnChunk | None = None,
    ) -> asyncio.Future[HttpReply]:
        """Write the request. The Future becomes the reply or an HttpFailure. The connection must be usable."""
        transport = self._transport
        assert transport is not None
        future: asyncio.Future[HttpReply] = self._loop.create_future()
        self._future = future
        self._reader.start(on_head, on_event, on_chunk)
        self._idle_s, self._deadline = idle_s, due
        self._phase = _BUSY
        transport.write(request)
        if transport.is_closing():
            # The write itself failed, so the kernel did not take all of it.
            self._unsent = True
        self._due = due = due if idle_s is None else min(due, clock.monotonic() + idle_s)
        if due < self._timer_at:
            self._arm_timer(due)
        return future

    def apply_limits(self) -> None:
        self._reader.apply_limits()

    def delivers_to(self, on_event: OnEvent) -> bool:
        return self._phase is _BUSY and self._reader.delivers_to(on_event)

    def abandon(self, future: asyncio.Future[HttpReply]) -> None:
        """Close the connection because the exchange was cancelled; that is how the peer notices."""
        if self._future is future:
            self._future = None
            self.abort()

    def abort(self) -> None:
        """Close without flushing. An exchange in progress fails."""
        self._fail(self._broken_stage(), "the gateway closed the connection")

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
        if self._phase is _DRAINING:
            self._drained += len(data)
            if self._drained > _DRAIN_BYTES:
                self.abort()
                return
        elif self._phase is not _BUSY:
            self.abort()
            return
        if self._catching_up:
            self._reader.keep(data)
        else:
            self._read(data)

    def _read(self, data: bytes | None) -> None:
        """Parse the received data, or continue with data left over from the last iteration."""
        reader = self._reader
        try:
            if data is None:
                reader.catch_up()
            else:
                reader.feed(data)
        except ReplyProblem as problem:
            self._fail(problem.stage, problem.message)
        except Exception as error:
            # A listener that raises fails its own exchange with its own exception.
            self._fail_with(error)
        else:
            if reader.complete:
                self._end_reply()
                return
            if self._phase is _BUSY:
                self._continue()
            if reader.has_unread or self._backpressure is not None:
                self._defer_reading()

    def _defer_reading(self) -> None:
        """Pause reading: the turn budget is spent, or the receiver of the stream cannot take more."""
        self._catching_up = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if self._backpressure is None:
            self._loop.call_soon(self._catch_up)
        else:
            self._backpressure.add_done_callback(self._backpressure_released)

    def _backpressure_released(self, _backpressure: asyncio.Future[None]) -> None:
        self._backpressure = None
        self._catch_up()

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._phase in (_BUSY, _DRAINING):
            self._read(None)
        if self._catching_up:
            return
        if self._lost_reason is not None:
            self._finish_lost(self._lost_reason)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        self._eof_received = True
        if self._catching_up:
            # Unread data may contain the reply. `connection_lost` follows.
            return
        self._end_with_connection("the peer closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        why = "the connection broke" if exc is None else f"the connection broke: {exc}"
        self._transport = None
        if self._catching_up and self._phase is _BUSY:
            self._lost_reason = why
        else:
            self._finish_lost(why)

    def _finish_lost(self, why: str) -> None:
        """Finish after the connection is lost and all received data is read."""
        self._end_with_connection(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reader.close()
        self._on_lost(self)

    def _end_with_connection(self, why: str) -> None:
        if self._phase is _BUSY and self._eof_received and self._reader.ends_with_connection():
            self._end_reply()
        else:
            self._fail(self._broken_stage(), why)

    # Progress and end of an exchange.

    def _continue(self) -> None:
        if self._reader.backpressure is not None:
            self._backpressure = self._reader.take_backpressure()
        if self._reader.stopped:
            self._set_reply()
            self._phase = _DRAINING
            self._drained = 0
            self._arm_timer(clock.monotonic() + _DRAIN_S)
        elif self._idle_s is not None:
            self._arm_timer(min(self._deadline, clock.monotonic() + self._idle_s))

    def _end_reply(self) -> None:
        """End an exchange whose reply was parsed to its end, or the rest of a stream that its listener has ended."""
        if self._phase is _BUSY:
            self._set_reply()
        if not self._reader.keep_alive or self._unsent or self._transport is None:
            self.abort()
        else:
            self._rest()

    def _rest(self) -> None:
        """Give the connection back to the pool."""
        self._phase, head = _IDLE, self._reader.head
        hint = head.headers.get(b"keep-alive") if head is not None else None
        self._due = due = clock.monotonic() + (self._keep_s if hint is None else self._keep_alive_s(hint))
        if due < self._timer_at:
            self._arm_timer(due)
        self._on_free(self)

    def _set_reply(self) -> None:
        """Set the result of the exchange, unless it has none or was abandoned."""
        future, self._future = self._future, None
        reader = self._reader
        head = reader.head
        if future is None or head is None or future.done():
            return
        body = reader.take_body()
        future.set_result(
            HttpReply(
                status=head.status,
                headers=head.headers,
                header_list=head.header_list,
                body=body,
                stopped=reader.stopped,
                request_sent=not self._unsent,
            )
        )

    def _fail(self, stage: Stage, message: str) -> None:
        if self._phase is _CLOSED:
            return
        status = self._reader.head.status if self._reader.head is not None else None
        executed = Executed.NO if self._unsent else Executed.MAYBE
        partial = self._reader.take_body()[:_PARTIAL_BYTES]
        self._fail_with(HttpFailure(stage, message, executed, status=status, partial=partial))

    def _fail_with(self, error: Exception) -> None:
        self._phase = _CLOSED
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

    def _keep_alive_s(self, hint: bytes) -> float:
        """Return the idle time: less than the peer announces, to avoid writing to a closing connection."""
        announced = hint.lower().partition(b"timeout=")[2].partition(b",")[0].strip()
        return min(self._keep_s, max(int(announced) - 1.0, 0.2)) if announced.isdigit() else self._keep_s

    def _arm_timer(self, due: float) -> None:
        """Set the timeout to `due`. An earlier timer is kept and re-armed when it fires, so most exchanges set none."""
        self._due = due
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._on_timer)
            self._timer_at = due

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = clock.monotonic()
        if self._due - now > _TIMER_SLACK_S:
            self._arm_timer(self._due)
        elif self._deadline - now > _TIMER_SLACK_S:
            self._fail(Stage.DEADLINE, f"no data from the peer for {self._idle_s} seconds")
        else:
            self._fail(Stage.DEADLINE, "the deadline passed before the reply was complete")
