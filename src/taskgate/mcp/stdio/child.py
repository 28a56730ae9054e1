"""One child process that talks in lines on its standard streams.

Callbacks only: no task per line, none per child. What the lines mean is for others. The owner starts, sends and stops; the
reaper covers the case that the owner cannot.
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

from taskgate.mcp.framing import Oversize
from taskgate.mcp.stdio.pipes import LineReader, LineWriter
from taskgate.mcp.stdio.process import ChildSpec, Reaper, spawn, watch_exit

_Said = TypeVar("_Said")
_MIB = 1024 * 1024
_STDERR_LINE_BYTES = 16 * 1024
# How long we still listen after the child is gone, or wait for it after it has closed its output.
_LAST_WORDS_S = 0.5
_SILENT_S = 2.0
_KILL_S = 5.0


class ChildExit(msgspec.Struct, frozen=True):
    """How it ended. `code` is negative for a signal. Lines above number `lines_handed_over` never reached it."""

    code: int
    lines_handed_over: int


class Child:
    """See the module. A callback that raises is reported to the event loop, and the next line goes on."""

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
        self._gone: asyncio.Future[ChildExit] = self._loop.create_future()

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
        """Start it in a process group of its own, or raise ChildFailure.

        `reaper` is None in programs that are not ours: what it does between fork and exec is safe only where no other
        thread may hold a lock. There a child outlives us if we are killed and it does not watch its input. Nothing is
        waited for, so a start cannot be cancelled half-way.
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
        """False as soon as the process is known to have ended."""
        return self._code is None

    @property
    def lines_handed_over(self) -> int:
        """How many lines the kernel has taken for the child, newline included."""
        return self._stdin.handed_over

    def send(self, line: bytes) -> int:
        """Send one line and return its number, counted from 1; raises ChildFailure if it cannot reach the child."""
        if b"\n" in line:
            raise ValueError("a line must not contain a newline")
        return self._stdin.send(line)

    def hold_back(self) -> None:
        """Read nothing more of its output until `go_on`: who hears it has enough to do."""
        self._stdout.hold_back()

    def go_on(self) -> None:
        self._stdout.go_on()

    def longest_line(self, max_line_bytes: int) -> None:
        """From now on lines may be as long as this."""
        self._stdout.adopt(max_line_bytes)

    def stderr_tail(self) -> list[str]:
        """The last lines it wrote to standard error."""
        return list(self._tail)

    async def wait_gone(self, timeout_s: float) -> ChildExit | None:
        """Its exit, once it and its group are gone and everything it said is read; None if that takes longer."""
        await asyncio.wait([self._gone], timeout=timeout_s)
        return self._gone.result() if self._gone.done() else None

    async def stop(self, grace_s: float) -> None:
        """Close its input and wait; then SIGTERM to the group and wait; then SIGKILL. Safe to call again."""
        try:
            self._stdin.close()
            if await self.wait_gone(grace_s) is not None:
                return
            self._signal_group(signal.SIGTERM)
            if await self.wait_gone(grace_s) is not None:
                return
        finally:
            if not self._gone.done():
                self._signal_group(signal.SIGKILL)
        await self.wait_gone(_KILL_S)

    def _take_output(self, line: bytes | Oversize) -> None:
        if isinstance(line, Oversize):
            self._tell(self._on_oversize, line)
        else:
            self._tell(self._on_line, line)

    def _take_stderr(self, line: bytes | Oversize) -> None:
        text = (
            f"[a line of {line.skipped_bytes} bytes]" if isinstance(line, Oversize) else line.decode("utf-8", "replace")
        )
        self._tail.append(text)
        if self._on_stderr is not None:
            self._tell(self._on_stderr, text)

    def _output_ended(self) -> None:
        if self._code is None:
            # Nobody can serve without an output; who does not go by itself is made to.
            self._timer = self._loop.call_later(_SILENT_S, self._signal_group, signal.SIGKILL)
        self._stream_ended()

    def _stream_ended(self) -> None:
        self._open_streams -= 1
        if self._code is not None and self._open_streams == 0:
            self._finish()

    def _exited(self) -> None:
        # Helpers that it left behind hold its pipes and have no purpose any more. The process is not reaped before this,
        # so its number is still its own.
        self._signal_group(signal.SIGKILL)
        self._code = self._process.wait()
        if self._reaper is not None:
            self._reaper.remove(self.pid)
        self._cancel_timer()
        if self._open_streams == 0:
            self._finish()
        else:
            self._timer = self._loop.call_later(_LAST_WORDS_S, self._listened_long_enough)

    def _listened_long_enough(self) -> None:
        if self._stdout.is_paused or self._stderr.is_paused:
            # Its last lines have not had their turn yet.
            self._timer = self._loop.call_later(_LAST_WORDS_S, self._listened_long_enough)
        else:
            self._finish()

    def _finish(self) -> None:
        self._cancel_timer()
        if self._gone.done() or self._code is None:
            return
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()
        half = self._stdout.unfinished_bytes
        if half:
            self._tail.append(f"[taskgate: dropped a half line of {half} bytes at the end of its output]")
        ended = ChildExit(self._code, self._stdin.handed_over)
        self._gone.set_result(ended)
        self._tell(self._on_exit, ended)

    def _tell(self, listener: Callable[[_Said], None], what: _Said) -> None:
        """Around one line: a listener that fails must not cost the lines after it."""
        try:
            listener(what)
        except Exception as error:  # told to the loop, which logs it
            self._loop.call_exception_handler({"message": "a listener of a child process failed", "exception": error})

    def _signal_group(self, number: signal.Signals) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
