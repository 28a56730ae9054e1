"""Wires over one shared stream of messages: a child's pipes, or the old HTTP+SSE transport.

Nothing on such a stream says which request a message belongs to, except the id of a response; so everything else is handed on
without a flight, and the link decides.

One child process as a wire: a line is a message.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import urljoin, urlsplit

import msgspec

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.sliced_reading import finished, reads_quickly, result_in_slices
from taskgate.core.wire import BeyondLimits, Kind, Message
from taskgate.mcp.failures import ChildFailure, HttpFailure
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.mcp.sse import SseEvent
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.upstream import CallFailed
from taskgate.reading import read_message, read_unread_result
from taskgate.turns import let_others_run
from taskgate.upstreams.flight import (
    Flight,
    Intake,
    Receiver,
    broke_protocol,
    looks_like_answer,
    timed_out,
    too_large,
    unreachable,
    unreadable,
)
from taskgate.upstreams.secret_filter import SecretFilter

_ID: Final = re.compile(rb'"id"\s*:\s*(\d+)')

AT_ONCE: Final = 50
"""Messages of one server that are read in one turn of the loop."""
MOST_UNREAD: Final = 4
"""How many of the largest messages may wait to be read, where their sender cannot be made to wait."""

JUNK_SHOWN = 200
"""Bytes that are kept of the first line that is no message."""


class StreamWire:
    """Correlates responses with requests by id. Subclasses say how a line leaves and how the stream ends."""

    session_id: str | None = None
    is_conversation = True

    def __init__(self, server: str, intake: Intake, secret_filter: SecretFilter) -> None:
        self.server = server
        self.secret_filter = secret_filter
        self._intake = intake
        self._reader = intake.reader
        self.junk_lines = 0
        self._first_junk = b""
        self._receiver: Receiver | None = None
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._in_parts: set[bytes] = set()
        """Those whose result may be beyond the limits of a message."""
        self._places: dict[bytes, int] = {}
        self._lost: UpstreamError | None = None
        self._later: deque[bytes] = deque()
        """What has come and was not read yet."""
        self._later_bytes = 0
        self._at_once = 0
        self._reading: asyncio.Task[None] | None = None
        self._ended: tuple[str, int | None] | None = None

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def detach(self) -> None:
        """Nobody uses it: that it ends now is no loss to anybody, and what it asked needs no answer."""
        if self._receiver is not None:
            self._receiver.lost(None)
        self._receiver = None

    def use_session(self, session_id: str | None) -> None:
        self.session_id = session_id

    def settle(self, version: str) -> None:
        """One stream, one conversation: there is nothing to repeat."""

    def begin_again(self) -> None:
        """There is nothing to forget either."""

    def listen(self) -> None:
        """The stream is always open."""

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """A stream proves nothing with each message."""
        return False

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message:
        if self._lost is not None:
            raise unreachable(self.server, "is not connected")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = b"%d" % flight.number
        self._waiting[key] = answer
        if flight.read_in_parts:
            self._in_parts.add(key)
        try:
            self._places[key] = await self._write(body)
            async with asyncio.timeout(flight.timeout_s):
                return await answer
        except TimeoutError:
            raise timed_out(self.server, flight.timeout_s) from None
        finally:
            self._waiting.pop(key, None)
            self._places.pop(key, None)
            self._in_parts.discard(key)

    def mark_long_lived(self, flight: Flight) -> None:
        """All calls share one stream, so none holds anything that another could miss."""

    async def send(self, body: bytes) -> None:
        if self._lost is not None:
            raise unreachable(self.server, "is not connected")
        await self._write(body)

    async def _write(self, body: bytes) -> int:
        """Send one message and say which one it was, counted from 1."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def pause_reading(self) -> None:
        """What comes next waits with its sender, where the transport can do that."""

    def resume_reading(self) -> None:
        """The opposite of `pause_reading`."""

    def received(self, body: bytes) -> None:
        """One message has arrived. So many are read at once; large ones, and what comes behind them, in later turns of the loop,
        so that a server that says much does not hold up the others.
        """
        if self._reading is None and self._at_once < AT_ONCE and reads_quickly(body):
            self._at_once += 1
            self._read(body)
            return
        self._later.append(body)
        self._later_bytes += len(body)
        if self._later_bytes > MOST_UNREAD * self._intake.max_bytes:
            self._later.clear()
            self._ended = ("said more at once than can be read", None)
        if self._reading is None:
            self.pause_reading()
            self._reading = asyncio.get_running_loop().create_task(self._read_on())

    async def _read_on(self) -> None:
        while self._later:
            await let_others_run()
            for _ in range(min(AT_ONCE, len(self._later))):
                body = self._later.popleft()
                self._later_bytes -= len(body)
                if reads_quickly(body):
                    self._read(body)
                else:
                    await self._read_large(body)
        self._at_once, self._reading = 0, None
        if self._ended is not None:
            self.stream_ended(*self._ended)
        else:
            self.resume_reading()

    async def _read_large(self, body: bytes) -> None:
        try:
            message = await read_message(self._reader, body)
        except BeyondLimits as problem:
            self._take_unread(await read_unread_result(body), problem)
        except TaskgateError as problem:
            self._unreadable(body, problem)
        else:
            if message.kind is Kind.NOTIFICATION and self.secret_filter.active:
                message = await self.secret_filter.large_notification(message)
            self._take(message)

    def _read(self, body: bytes) -> None:
        try:
            message = self._reader.read(body)
        except BeyondLimits as problem:
            try:
                self._take_unread(finished(result_in_slices(body)), problem)
            except TaskgateError:
                self.junk_lines += 1
        except TaskgateError as problem:
            self._unreadable(body, problem)
        else:
            if message.kind is Kind.NOTIFICATION and self.secret_filter.active:
                message = self.secret_filter.notification(message)
            self._take(message)

    def _take_unread(self, message: Message | None, problem: BeyondLimits) -> None:
        """A message beyond the limits. If it answers a request whose result is read in parts it is taken, with its result unread;
        any other request that it answers fails."""
        waiting = self._waiting.get(message.id) if message is not None and message.id is not None else None
        if message is None or waiting is None or waiting.done():
            self.junk_lines += 1
        elif message.id in self._in_parts:
            waiting.set_result(message)
        else:
            waiting.set_exception(unreadable(self.server, problem, self.secret_filter))

    def _unreadable(self, body: bytes, problem: TaskgateError) -> None:
        """Whatever is not a message (a banner, say) is counted and dropped."""
        if not self.junk_lines:
            self._first_junk = body[:JUNK_SHOWN]
        self.junk_lines += 1
        self._refuse_unreadable(body, problem)

    def first_junk(self) -> str:
        """The beginning of the first thing it sent that is no message; empty if there was none."""
        return self.secret_filter.text(self._first_junk.decode("utf-8", "replace").strip())

    def _take(self, message: Message) -> None:
        if message.kind is Kind.RESPONSE:
            waiting = self._waiting.get(message.id) if message.id is not None else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return
        if self._receiver is not None:
            self._receiver.incoming(message, None)

    def _refuse_unreadable(self, body: bytes, problem: TaskgateError) -> None:
        """An answer that breaks the rules of JSON is still an answer: who waits for it is told, instead of waiting on."""
        try:
            answered = bytes(wire.members_of(body).get("id", b"")) if body.lstrip()[:1] == b"{" else b""
        except (msgspec.MsgspecError, RecursionError):
            return
        waiting = self._waiting.get(answered)
        if waiting is not None and not waiting.done():
            waiting.set_exception(unreadable(self.server, problem, self.secret_filter))

    def refuse_oversize(self, begin: bytes, end: bytes) -> None:
        """A message was too large to keep. Who waits for it is told; its id stands near the beginning or near the end."""
        waiting = {key: future for key, future in self._waiting.items() if not future.done()}
        if looks_like_answer(begin):
            found = _ID.findall(begin.partition(b'"result"')[0]) + _ID.findall(end)
            named = [future for key, future in waiting.items() if key in found]
            for future in named or (list(waiting.values()) if len(waiting) == 1 else []):
                future.set_exception(too_large(self.server, self._intake.max_bytes))
        elif len(waiting) == 1 and b'"method"' not in begin:
            why = f"sent a message of more than {self._intake.max_bytes} bytes"
            next(iter(waiting.values())).set_exception(broke_protocol(self.server, why))

    def stream_ended(self, why: str, delivered: int | None = None) -> None:
        """The stream is gone: who waits for an answer hears that the call may have been executed, unless it never left.

        `delivered` counts the messages that are known to have been handed over whole.
        """
        if self._lost is not None:
            return
        if self._reading is not None:
            # What came before the end counts, and may hold answers.
            self._ended = (why, delivered)
            return
        self._lost = unreachable(self.server, why)
        for key, future in self._waiting.items():
            if not future.done():
                left = delivered is None or self._places.get(key, 0) <= delivered
                future.set_exception(unreachable(self.server, why, Executed.MAYBE if left else Executed.NO))
        if self._receiver is not None:
            self._receiver.lost(self._lost)


STOP_GRACE_S = 2.0
AROUND_A_RESULT = 64 * 1024


class StdioWire(StreamWire):
    def __init__(self, server: str, intake: Intake, secret_filter: SecretFilter, hide: Callable[[str], str]) -> None:
        super().__init__(server, intake, secret_filter)
        self._hide = hide
        self._child: Child | None = None

    async def start(self, spec: ChildSpec, reaper: Reaper) -> None:
        try:
            self._child = await Child.start(
                spec,
                on_line=self.received,
                on_exit=self._exited,
                on_oversize=lambda line: self.refuse_oversize(line.begin, line.end),
                reaper=reaper,
                max_line_bytes=self._intake.max_bytes + AROUND_A_RESULT,
            )
        except ChildFailure as failure:
            raise unreachable(self.server, f"could not be started: {self._hide(failure.message)}") from None
        self._intake.lines.add(self)

    def adopt(self, max_bytes: int) -> None:
        if self._child is not None:
            self._child.set_max_line_bytes(max_bytes + AROUND_A_RESULT)

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause_reading()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume_reading()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def stderr_tail(self) -> list[str]:
        """The last lines that it wrote. It may write what it was given: variables, arguments."""
        return list(map(self.secret_filter.text, self._child.stderr_tail())) if self._child is not None else []

    async def _write(self, body: bytes) -> int:
        if self._child is None:
            raise unreachable(self.server, "is not running")
        if b"\n" in body:
            # A raw newline in JSON can only be white space between tokens; here it would end the message.
            body = body.replace(b"\r", b" ").replace(b"\n", b" ")
        try:
            return self._child.send(body)
        except ChildFailure as failure:
            raise unreachable(self.server, f"cannot be written to: {failure.message}") from None

    def _exited(self, ending: ChildExit) -> None:
        how = f"was ended by signal {-ending.code}" if ending.code < 0 else f"ended with exit code {ending.code}"
        self.stream_ended(how, ending.lines_handed_over)

    async def close(self) -> None:
        if self._child is not None:
            await self._child.stop(STOP_GRACE_S)


# The HTTP+SSE transport of 2024-11-05: one GET stream for everything, and POSTs to an address that the stream names
# first.
#
# Kept because servers with it are still around; only ever used towards upstreams.


class OldSseWire(StreamWire):
    def __init__(
        self,
        server: str,
        client: HttpClient,
        url: str,
        headers: dict[str, str],
        intake: Intake,
        *,
        secret_filter: SecretFilter,
    ) -> None:
        super().__init__(server, intake, secret_filter)
        self._client = client
        self._url = url
        self._headers = headers
        self._post_target: asyncio.Future[Target] | None = None
        self._stream: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Open the stream and wait for the address to post to."""
        loop = asyncio.get_running_loop()
        self._post_target = loop.create_future()
        self._stream = loop.create_task(self._follow())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._post_target)
        except TimeoutError:
            await self.close()
            raise unreachable(self.server, "named no address to post to") from None

    async def _follow(self) -> None:
        target = Target.parse(self._url, self._headers)
        try:
            reply = await self._client.exchange(
                target,
                b"GET",
                ((b"accept", b"text/event-stream"),),
                b"",
                deadline_s=None,
                on_event=self._on_event,
                long_lived=True,
            )
            why = "closed the event stream" if reply.status == 200 else f"answered with HTTP {reply.status}"
        except HttpFailure:
            why = "broke the event stream"
        if self._post_target is not None and not self._post_target.done():
            self._post_target.set_exception(unreachable(self.server, why))
        self.stream_ended(why)

    def _on_event(self, event: SseEvent) -> bool:
        if event.event == "endpoint" and self._post_target is not None and not self._post_target.done():
            self._take_address(event.data.decode("utf-8", "replace"))
        elif event.event in ("message", "") and event.data:
            self.received(event.data)
        return False

    def _take_address(self, address: str) -> None:
        """The address must be of the same origin: a server may not send our requests elsewhere."""
        assert self._post_target is not None
        url = urljoin(self._url, address)
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            self._post_target.set_exception(unreachable(self.server, "named an address of another origin"))
        else:
            self._post_target.set_result(Target.parse(url, self._headers))

    async def _write(self, body: bytes) -> int:
        assert self._post_target is not None
        target = await self._post_target
        try:
            reply = await self._client.exchange(
                target, b"POST", ((b"content-type", b"application/json"),), body, deadline_s=30
            )
        except HttpFailure as failure:
            raise unreachable(self.server, "broke the connection", failure.executed) from None
        if reply.status >= 400:
            raise unreachable(self.server, f"refused the request with HTTP {reply.status}")
        return 0

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.gather(self._stream, return_exceptions=True)
        self.stream_ended("was closed")
