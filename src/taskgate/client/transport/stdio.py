"""MCP over the standard streams of a child process: one JSON message a line.

It starts the program in a process group of its own, fails every outstanding request when the program ends (with
the last lines it wrote to standard error) and makes sure that nothing is left running. Made by `connect`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence

from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidReply,
    ReplyTooLarge,
    SessionClosed,
)
from taskgate.client.options import Options
from taskgate.client.transport.carrier import Deliver, Outgoing
from taskgate.client.wire import Message, decode_messages

# What a child inherits unless told otherwise: enough to find programs and a home, no secrets of this process.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
# How long a program may take to leave after its input was closed, and again after it was asked to terminate.
LEAVE_SECONDS, TERMINATE_SECONDS = 1.0, 2.0


class Stdio:
    """A carrier that owns one child process."""

    closing_cancels = False

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, options: Options, deliver: Deliver
    ) -> None:
        self._command, self._cwd, self._options, self._deliver = list(command), cwd, options, deliver
        self._env = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(env or {})
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._complaints: deque[bytes] = deque(maxlen=20)
        self._broken: ClientError | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=self._env,
                cwd=self._cwd,
                limit=self._options.max_reply_bytes,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotConnect(f"cannot start {self._command[0]!r}: {error.strerror or error}") from error
        self._broken = None
        self._readers = [
            asyncio.create_task(self._read_messages(self._process), name="taskgate-client-stdout"),
            asyncio.create_task(self._read_complaints(self._process), name="taskgate-client-stderr"),
        ]

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """Nothing on this wire depends on the generation."""

    async def restart(self) -> None:
        if self._process is None or self._broken is not None:
            await self._stop()
            await self.start()

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = str(outgoing.id)
        self._pending[key] = future
        try:
            async with asyncio.timeout(timeout):
                await self._write(outgoing.body)
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded("the server did not answer in time") from error
        finally:
            self._pending.pop(key, None)

    async def post(self, body: bytes, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._write(body)
        except TimeoutError as error:
            raise DeadlineExceeded("the server does not read what it is sent") from error

    async def close(self) -> None:
        self._fail(SessionClosed("the session was closed"))
        await self._stop()

    async def _write(self, body: bytes) -> None:
        if self._broken is not None:
            raise self._broken
        if self._process is None or self._process.stdin is None:
            raise SessionClosed("the session is not open")
        try:
            self._process.stdin.write(body + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise ConnectionLost(f"the server program ended{self._last_words()}") from error

    async def _read_messages(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                if line.strip():
                    self._sort(line)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):  # let its last words arrive
                    await process.wait()
                    await asyncio.wait({self._readers[1]})
            self._fail(ConnectionLost(f"the server program ended{self._last_words()}"))
        except (ValueError, asyncio.LimitOverrunError):
            self._fail(ReplyTooLarge(f"the server sent a line longer than {self._options.max_reply_bytes} bytes"))

    def _sort(self, line: bytes) -> None:
        try:
            messages = decode_messages(line)
        except InvalidReply:
            self._complaints.append(b"(on standard output) " + line[:200])  # programs that print are common
            return
        for message in messages:
            if "method" in message:
                self._deliver(message)
                continue
            future = self._pending.get(str(message.get("id")))
            if future is not None and not future.done():
                future.set_result(message)

    async def _read_complaints(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            self._complaints.append(chunk[-400:])

    def _fail(self, error: ClientError) -> None:
        self._broken = self._broken or error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)

    def _last_words(self) -> str:
        text = b"".join(self._complaints).decode("utf-8", "replace").strip()
        return f"; it said: {text[-600:]}" if text else ""

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for wait, kill in ((LEAVE_SECONDS, signal.SIGTERM), (TERMINATE_SECONDS, signal.SIGKILL)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await process.wait()
                break
            _signal_group(process, kill)
        await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = []
        # The streams of a process that was killed stay open until its transport is collected, unless told.
        process._transport.close()  # type: ignore[attr-defined]


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
