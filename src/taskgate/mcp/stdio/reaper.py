"""End every child and grandchild when the gateway ends, even if the gateway is killed.

A small watcher process in its own session reads a pipe from the gateway. The pipe carries the process groups that
exist; when it closes, because the gateway ended in any way, the watcher ends those groups. A child announces its own
group between fork and exec, so no child is missed. On Linux the kernel also kills the direct child. Processes that
leave their group on purpose (daemons) are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable

_CLOSE_S = 3.0
_PR_SET_PDEATHSIG = 1

# Runs without this package and without site-packages, to start fast and stay small.
_WATCH = """
import os, signal, time
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
groups, rest = set(), b""
def alive(signal_number):
    left = set()
    for group in groups:
        try:
            os.killpg(group, signal_number)
            left.add(group)
        except OSError:
            pass
    return left
while True:
    data = os.read(0, 65536)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        number = int(line or b"0")
        if number > 1:
            groups.add(number)
        else:
            groups.discard(-number)
    groups = alive(0)
groups = alive(signal.SIGTERM)
end = time.monotonic() + 1
while groups and time.monotonic() < end:
    time.sleep(0.02)
    groups = alive(0)
alive(signal.SIGKILL)
"""


class Reaper:
    """One per gateway, shared by all children. The watcher starts with the first child and is restarted if it dies."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._groups: set[int] = set()
        self._prctl = _find_prctl()

    @property
    def watcher_pid(self) -> int | None:
        """The pid of the watcher, once it is started."""
        return self._watcher.pid if self._watcher is not None else None

    def before_exec(self) -> Callable[[], None]:
        """Return the function that a child runs between fork and exec. It must not import modules or take locks."""
        pipe = self._open_pipe()
        parent = os.getpid()
        prctl = self._prctl
        kill = int(signal.SIGKILL)

        def tie_to_parent() -> None:
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, kill)
                if os.getppid() != parent:
                    os._exit(1)
            os.write(pipe, b"%d\n" % os.getpid())

        return tie_to_parent

    def add(self, group: int) -> None:
        """Record a group for a restarted watcher. The child announced it to the current watcher itself."""
        self._groups.add(group)

    def remove(self, group: int) -> None:
        """Forget a group that has ended, because its number may be reused."""
        if group in self._groups:
            self._groups.discard(group)
            self._send(b"%d\n" % -group)

    def prune(self) -> None:
        """Make the watcher drop groups that do not exist, after a child announced itself but failed to exec."""
        self._send(b"0\n")

    async def close(self) -> None:
        """Let the watcher end the remaining groups and exit."""
        watcher, self._watcher = self._watcher, None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if watcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(watcher.wait, _CLOSE_S)

    def _send(self, line: bytes) -> None:
        if self._pipe is not None:
            # A dead watcher is replaced when the next child starts, and then receives the existing groups.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, line)

    def _open_pipe(self) -> int:
        if self._watcher is not None and self._watcher.poll() is not None and self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._pipe is None:
            self._pipe = self._start_watcher()
            for group in self._groups:
                self._send(b"%d\n" % group)
        return self._pipe

    def _start_watcher(self) -> int:
        read_end, write_end = os.pipe()
        try:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCH],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return write_end


def _find_prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return prctl
