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
from typing import IO, TypeVar

import msgspec

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.framing import LineSplitter, Oversize
from taskgate.mcp.stdio.process import ChildSpec, Reaper, spawn, watch_exit

# The standard streams of a child as callbacks on bare descriptors: a writer that counts what the kernel took, and
# readers.
#
# The pipe transports of the event loops are not used: they do not tell which line was cut off when a pipe broke, and it
# depends on the loop who closes the descriptor. Here each file object owns its descriptor, alone, until `close`.

_BUFFER_BYTES = 32 * 1024 * 1024
# As much as a pipe holds.
_READ_BYTES = 64 * 1024


class LineWriter:
    """Lines towards the child. They are numbered from 1; those up to `handed_over` are in the kernel's hands."""

    __slots__ = ("_last", "_loop", "_pipe", "_queue", "_queued_bytes", "_rest", "handed_over")

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._rest = memoryview(b"")
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._last = 0
        self.handed_over = 0

    def send(self, line: bytes) -> int:
        """Write or queue one line and return its number; raises ChildFailure if it cannot get there."""
        if self._pipe.closed:
            raise ChildFailure(ChildProblem.GONE, "the process has ended or closed its input")
        if self._queued_bytes + len(line) > _BUFFER_BYTES:
            raise ChildFailure(ChildProblem.BUFFER_FULL, "the process does not read its input fast enough")
        data = line + b"\n"
        if self._rest:
            self._queue.append(data)
            self._queued_bytes += len(data)
        else:
            self._rest = memoryview(data)
            self._push()
            if self._pipe.closed:
                raise ChildFailure(ChildProblem.GONE, "the process closed its input before the line had left")
            if self._rest:
                self._loop.add_writer(self._pipe.fileno(), self._go_on)
        self._last += 1
        return self._last

    def close(self) -> None:
        """End the child's input. What it has not made room for is given up."""
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()
        self._queue.clear()
        self._queued_bytes = 0

    def _push(self) -> None:
        """Write what is left of the present line, as far as there is room; a broken pipe is closed."""
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._rest:
            self.handed_over += 1

    def _go_on(self) -> None:
        self._push()
        while not self._rest and self._queue and not self._pipe.closed:
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            self._rest = memoryview(data)
            self._push()
        if not self._rest and not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())


class ChunkReader:
    """Bytes from the child, as they come, and the end of them."""

    __slots__ = ("_loop", "_on_chunk", "_on_end", "_pipe", "is_paused")

    def __init__(self, pipe: IO[bytes], on_chunk: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._on_chunk = on_chunk
        self._on_end = on_end
        self.is_paused = False
        self._loop.add_reader(pipe.fileno(), self._read)

    def pause(self) -> None:
        """Leave what comes in the pipe, which makes a child that goes on writing wait."""
        if not self._pipe.closed and not self.is_paused:
            self.is_paused = True
            self._loop.remove_reader(self._pipe.fileno())

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if not self._pipe.closed:
                self._loop.add_reader(self._pipe.fileno(), self._read)

    def close(self) -> None:
        """Stop listening, without an end being told."""
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_chunk(data)
        else:
            self.close()
            self._on_end()


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
        self._out_lines = LineSplitter(max_line_bytes)
        self._err_lines = LineSplitter(_STDERR_LINE_BYTES)
        self._tail: deque[str] = deque(maxlen=stderr_lines)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = LineWriter(process.stdin)
        self._stdout = ChunkReader(process.stdout, self._take_output, self._output_ended)
        self._stderr = ChunkReader(process.stderr, self._take_stderr, self._stream_ended)
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
        self._stdout.pause()

    def go_on(self) -> None:
        self._stdout.resume()

    def longest_line(self, max_line_bytes: int) -> None:
        """From now on lines may be as long as this."""
        self._out_lines.adopt(max_line_bytes)

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

    def _take_output(self, data: bytes) -> None:
        for line in self._out_lines.feed(data):
            if isinstance(line, Oversize):
                self._tell(self._on_oversize, line)
            else:
                self._tell(self._on_line, line)

    def _take_stderr(self, data: bytes) -> None:
        for line in self._err_lines.feed(data):
            if isinstance(line, Oversize):
                text = f"[a line of {line.skipped_bytes} bytes]"
            else:
                text = line.decode("utf-8", "replace")
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
        if self._stdout.is_paused:
            # Its last words are in the pipe, and whoever hears them is still busy with those before.
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
        half = self._out_lines.unfinished_bytes
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
