"""MCP over the standard streams of a child process: one JSON message per line.

The program is started in its own process group. When it exits, every outstanding request fails with the last lines of its
stderr, and no process of the group is left running.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidReply,
    ReplyTooLarge,
    SessionClosed,
)
from taskgate.client.messages import Message, decode_messages
from taskgate.client.options import Options
from taskgate.client.transport import Deliver, Outgoing
from taskgate.mcp.failures import ChildFailure
from taskgate.mcp.lines import Oversize
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec

# Time for a program to exit after its stdin was closed, and again after SIGTERM.
SHUTDOWN_SECONDS = 2.0
STDERR_TAIL = 2000


class Stdio:
    """A transport that owns one child process."""

    closing_cancels = False
    session_id = None

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, options: Options, deliver: Deliver
    ) -> None:
        self._spec = ChildSpec(command[0], tuple(command[1:]), env, cwd)
        self._options, self._deliver = options, deliver
        self._child: Child | None = None
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._stderr: deque[str] = deque(maxlen=40)
        self._broken: Callable[[str], ClientError] | None = None
        """Returns the error for a request, given `executed`; None while the program runs."""

    async def start(self) -> None:
        try:
            self._child = await Child.start(
                self._spec,
                on_line=self._sort,
                on_exit=self._exited,
                on_oversize=self._oversized,
                on_stderr=self._stderr.append,
                reaper=None,
                max_line_bytes=self._options.max_reply_bytes,
            )
        except ChildFailure as failure:
            raise CannotConnect(f"cannot start {self._spec.command!r}: {failure.message}") from failure
        self._broken = None

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """Nothing to do: stdio framing does not depend on the protocol version."""

    async def restart(self) -> None:
        if self._child is None or self._broken is not None:
            await self._stop()
            await self.start()

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = str(outgoing.id)
        self._pending[key] = future
        try:
            async with asyncio.timeout(timeout):
                self._write(outgoing.body)
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded("the server did not answer in time") from error
        finally:
            self._pending.pop(key, None)

    async def post(self, body: bytes, timeout: float) -> None:
        self._write(body)

    async def close(self) -> None:
        self._fail(partial(SessionClosed, "the session was closed"))
        await self._stop()

    def _write(self, body: bytes) -> None:
        if self._broken is not None:
            raise self._broken("no")
        if self._child is None:
            raise SessionClosed("the session is not open", "no")
        try:
            self._child.send(body)
        except ChildFailure as failure:
            message = f"cannot write to the server program: {failure.message}{self._stderr_tail()}"
            raise ConnectionLost(message, failure.executed.value) from failure

    def _sort(self, line: bytes) -> None:
        try:
            messages = decode_messages(line)
        except InvalidReply:
            text = line[:200].decode("utf-8", "replace")
            self._stderr.append(f"(on stdout) {text}")  # many programs print log lines to stdout
            return
        for message in messages:
            if "method" in message:
                self._deliver(message)
                continue
            future = self._pending.get(str(message.get("id")))
            if future is not None and not future.done():
                future.set_result(message)

    def _oversized(self, line: Oversize) -> None:
        text = f"the server sent a line longer than {self._options.max_reply_bytes} bytes"
        self._fail(lambda executed: ReplyTooLarge(text) if executed == "maybe" else ConnectionLost(text, executed))

    def _exited(self, ending: ChildExit) -> None:
        self._fail(partial(ConnectionLost, f"the server program exited{self._stderr_tail()}"))

    def _fail(self, error: Callable[[str], ClientError]) -> None:
        """Fail all pending requests, each with a separate exception, because `executed` may differ."""
        self._broken = self._broken or error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error("maybe"))

    def _stderr_tail(self) -> str:
        text = "\n".join(self._stderr).strip()
        return f"; stderr: {text[-STDERR_TAIL:]}" if text else ""

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop(SHUTDOWN_SECONDS)
