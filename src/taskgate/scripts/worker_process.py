"""A worker as a child process: started in its own session, one request at a time, with a deadline.

The methods block; the pool calls them in threads. They use real time, because they wait for another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from taskgate.scripts.frames import HEADER_BYTES, BadReply, lengths

_REAP_S: Final = 10.0
_CHUNK: Final = 256 * 1024
_MAX_SAID: Final = 8_000
_BOOT: Final = "import sys; sys.path.append(sys.argv.pop(1)); import worker; worker.main()"
"""Imported, not run as a file: only then its compiled form is kept."""


class WorkerEnded(Exception):
    """The worker ended before it replied."""


class WorkerLate(Exception):
    """The worker did not reply in time."""


class WorkerCommand(msgspec.Struct, frozen=True):
    """How a worker is started."""

    packages: str
    """The folder of the interpreter's package."""
    binary: str
    """The interpreter's own program."""
    memory_bytes: int
    """Address space of each of its two processes."""
    cpu_seconds: int
    """CPU time of its whole lifetime."""

    def arguments(self) -> list[str]:
        """Isolated from the environment and from site packages."""
        folder = str(Path(__file__).parent)
        facts = [self.packages, self.binary, str(self.memory_bytes), str(self.cpu_seconds)]
        return [sys.executable, "-I", "-S", "-c", _BOOT, folder, *facts]


class WorkerProcess:
    """One worker. After any exception it must be killed."""

    def __init__(self, command: WorkerCommand) -> None:
        said, errors = os.pipe()
        self._errors = open(said, "rb", buffering=0)  # noqa: SIM115  closed by `reap`
        # A worker that writes more than the pipe holds gets an error, and does not wait for a reader.
        os.set_blocking(errors, False)
        os.set_blocking(said, False)
        try:
            self._process = subprocess.Popen(
                command.arguments(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise
        finally:
            os.close(errors)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        self.steps = 0
        self.said = ""
        """What it had written to its standard error, known after `reap`."""

    @property
    def pid(self) -> int:
        """The process, which is also the id of its group."""
        return self._process.pid

    def exchange(self, request: bytes, max_body: int, max_snapshot: int, seconds: float) -> tuple[bytes, bytes]:
        """Send a request and return the two parts of the reply. Raises WorkerEnded, WorkerLate or BadReply."""
        self.steps += 1
        deadline = time.monotonic() + seconds
        self._send(request, deadline)
        received = bytearray()
        self._receive(received, HEADER_BYTES, deadline)
        body_bytes, snapshot_bytes = lengths(received[:HEADER_BYTES])
        if body_bytes > max_body or snapshot_bytes > max_snapshot:
            raise BadReply(f"its reply has {body_bytes + snapshot_bytes:,} bytes")
        end = HEADER_BYTES + body_bytes
        self._receive(received, end + snapshot_bytes, deadline)
        if len(received) > end + snapshot_bytes:
            raise BadReply("it sent more than its reply")
        return bytes(received[HEADER_BYTES:end]), bytes(received[end:])

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._requests, rest[:_CHUNK]) :]
            except BlockingIOError:
                self._wait(self._requests, select.POLLOUT, deadline)
            except OSError as error:
                raise WorkerEnded(str(error)) from None

    def _receive(self, received: bytearray, count: int, deadline: float) -> None:
        """Read until at least `count` bytes have arrived. They arrive together, unless the reply is large."""
        while len(received) < count:
            self._wait(self._replies, select.POLLIN, deadline)
            chunk = os.read(self._replies, _CHUNK)
            if not chunk:
                raise WorkerEnded("it closed its output")
            received += chunk

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise WorkerLate

    def kill(self) -> None:
        """End its whole group: itself and the interpreter. May be called from any thread, and more than once."""
        # Not after it was reaped: its id may belong to another group by then.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> str:
        """Wait for its end after `kill`, close the pipes, and return how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._read_errors()
        code = self._process.returncode
        if code is None:
            return "it could not be ended"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _read_errors(self) -> None:
        """The first time only: `reap` may be called twice."""
        if not self._errors.closed:
            with self._errors as errors:
                self.said = (errors.read(_MAX_SAID) or b"").decode(errors="replace").strip()
