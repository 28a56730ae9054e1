"""One child process with line-based standard streams.

It uses callbacks only: no task per line or per child. It does not interpret the lines. Its owner starts it, sends lines
and stops it; the reaper ends it if the owner cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from taskgate.mcp.lines import Oversize
from taskgate.mcp.stdio.pipes import LineReader, LineWriter
from taskgate.mcp.stdio.process import ChildSpec, spawn, watch_exit
from taskgate.mcp.stdio.reaper import Reaper

_T = TypeVar("_T")
_MIB = 1024 * 1024
_STDERR_LINE_BYTES = 16 * 1024
# How long output is still read after the exit, and how long an exit is awaited after the output was closed.
_DRAIN_S = 0.5
_NO_OUTPUT_S = 2.0
_KILL_S = 5.0


class ChildExit(msgspec.Struct, frozen=True):
    """The exit of a child. `code` is negative for a signal. Lines numbered above `lines_handed_over` never reached it."""

    code: int
    lines_handed_over: int


class Child:
    """A child process. An exception in a callback is reported to the event loop, and the next line is processed."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        on_line: Callable[[bytes], None],
        on_exit: Callable[[ChildExit], None],
        on_oversize: Callable[[Oversize], None],
        on_stderr: Callable[[str], None] | None,
        reaper: Reaper | None,
        max_line_bytes: int,
        stderr_lines: int,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        self._on_exit = on_exit
        self._on_oversize = on_oversize
        self._on_stderr = on_stderr
        self._reaper = reaper
        self._tail: deque[str] = deque(maxlen=stderr_lines)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = LineWriter(process.stdin)
        self._stdout = LineReader(process.stdout, max_line_bytes, self._take_output, self._output_ended)
        self._stderr = LineReader(process.stderr, _STDERR_LINE_BYTES, self._take_stderr, self._stream_ended)
        self._open_streams = 2
        self._code: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._exit: asyncio.Future[ChildExit] = self._loop.create_future()

    @classmethod
    async def start(
        cls,
        spec: ChildSpec,
        *,
        on_line: Callable[[bytes], None],
        on_exit: Callable[[ChildExit], None],
        on_oversize: Callable[[Oversize], None],
        reaper: Reaper | None,
        on_stderr: Callable[[str], None] | None = None,
        max_line_bytes: int = 16 * _MIB + 64 * 1024,
        stderr_lines: int = 200,
    ) -> Child:
        """Start the process in its own process group. Raises ChildFailure.

        `reaper` must be None in third-party programs: its code between fork and exec is safe only if no other thread
        may hold a lock. Without it, the child outlives a killed program unless it reads its input. Nothing is awaited,
        so a start cannot be cancelled half-way.
        """
        child = cls(
            spawn(spec, reaper),
            on_line=on_line,
            on_exit=on_exit,
            on_oversize=on_oversize,
            on_stderr=on_stderr,
            reaper=reaper,
            max_line_bytes=max_line_bytes,
            stderr_lines=stderr_lines,
        )
        if reaper is not None:
            reaper.add(child.pid)
        watch_exit(child._process, child._exited)
        return child

    @property
    def running(self) -> bool:
        """Whether the process has not exited, as far as is known."""
        return self._code is None

    @property
    def lines_handed_over(self) -> int:
        """How many lines, including their newline, were handed to the kernel."""
        return self._stdin.handed_over

    def send(self, line: bytes) -> int:
        """Send one line and return its number, counted from 1. Raises ChildFailure if it cannot be sent."""
        if b"\n" in line:
            raise ValueError("a line must not contain a newline")
        return self._stdin.send(line)

    def pause_reading(self) -> None:
        """Stop reading its output until `resume_reading`, because the receiver is overloaded."""
        self._stdout.pause_reading()

    def resume_reading(self) -> None:
        self._stdout.resume_reading()

    def set_max_line_bytes(self, max_line_bytes: int) -> None:
        """Change the maximum length of an output line."""
        self._stdout.set_max_line_bytes(max_line_bytes)

    def stderr_tail(self) -> list[str]:
        """Return the last lines of its stderr."""
        return list(self._tail)

    async def wait_exit(self, timeout_s: float) -> ChildExit | None:
        """Return its exit once the process group has ended and its output is read, or None after the timeout."""
        await asyncio.wait([self._exit], timeout=timeout_s)
        return self._exit.result() if self._exit.done() else None

    async def stop(self, grace_s: float) -> None:
        """Close its input and wait, then send SIGTERM to the group and wait, then SIGKILL. Idempotent."""
        try:
            self._stdin.close()
            if await self.wait_exit(grace_s) is not None:
                return
            self._signal_group(signal.SIGTERM)
            if await self.wait_exit(grace_s) is not None:
                return
        finally:
            if not self._exit.done():
                self._signal_group(signal.SIGKILL)
        await self.wait_exit(_KILL_S)

    def _take_output(self, line: bytes | Oversize) -> None:
        if isinstance(line, Oversize):
            self._notify(self._on_oversize, line)
        else:
            self._notify(self._on_line, line)

    def _take_stderr(self, line: bytes | Oversize) -> None:
        text = (
            f"[a line of {line.skipped_bytes} bytes]" if isinstance(line, Oversize) else line.decode("utf-8", "replace")
        )
        self._tail.append(text)
        if self._on_stderr is not None:
            self._notify(self._on_stderr, text)

    def _output_ended(self) -> None:
        if self._code is None:
            # A server without output is useless: kill it if it does not exit by itself.
            self._timer = self._loop.call_later(_NO_OUTPUT_S, self._signal_group, signal.SIGKILL)
        self._stream_ended()

    def _stream_ended(self) -> None:
        self._open_streams -= 1
        if self._code is not None and self._open_streams == 0:
            self._finish()

    def _exited(self) -> None:
        # Orphaned helpers hold its pipes, so the whole group is killed. The process is not reaped yet, so its pid cannot
        # have been reused.
        self._signal_group(signal.SIGKILL)
        self._code = self._process.wait()
        if self._reaper is not None:
            self._reaper.remove(self.pid)
        self._cancel_timer()
        if self._open_streams == 0:
            self._finish()
        else:
            self._timer = self._loop.call_later(_DRAIN_S, self._drain_timeout)

    def _drain_timeout(self) -> None:
        if self._stdout.is_paused or self._stderr.is_paused:
            # Its last lines are not delivered yet.
            self._timer = self._loop.call_later(_DRAIN_S, self._drain_timeout)
        else:
            self._finish()

    def _finish(self) -> None:
        self._cancel_timer()
        if self._exit.done() or self._code is None:
            return
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()
        half = self._stdout.unfinished_bytes
        if half:
            self._tail.append(f"[taskgate: dropped a half line of {half} bytes at the end of its output]")
        ended = ChildExit(self._code, self._stdin.handed_over)
        self._exit.set_result(ended)
        self._notify(self._on_exit, ended)

    def _notify(self, listener: Callable[[_T], None], what: _T) -> None:
        """Call a listener. Its exception must not prevent the delivery of later lines."""
        try:
            listener(what)
        except Exception as error:  # the loop logs it
            self._loop.call_exception_handler({"message": "a listener of a child process failed", "exception": error})

    def _signal_group(self, number: signal.Signals) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
