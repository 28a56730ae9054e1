"""Run a command on a pseudo-terminal, as in an interactive shell."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence

TIMEOUT = 120.0


class Terminal:
    """A command on a pseudo-terminal: wait for output, type input."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(command[0], list(command), dict(environment))
        self.seen = ""

    def wait_for(self, words: str) -> str:
        deadline = time.monotonic() + TIMEOUT
        while words not in self.seen:
            self._read(deadline, words)
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        deadline = time.monotonic() + TIMEOUT
        try:
            while True:
                self._read(deadline, "the end")
        except OSError:
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)

    def _read(self, deadline: float, words: str) -> None:
        ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"{words!r} did not come; the terminal shows:\n{self.seen}")
        chunk = os.read(self.master, 65536)
        if not chunk:
            raise OSError
        self.seen += chunk.decode(errors="replace")
