"""Makes sure that no child or grandchild outlives the gateway, even if the gateway is killed without warning.

A tiny watcher process in a session of its own reads a pipe from us. The pipe tells it which process groups exist; when the
pipe closes, because we ended in whatever way, it ends those groups. A child announces its own group before it becomes the
server, so there is no moment in which it could be overlooked. On Linux the kernel kills the direct child as well.
Processes that leave their group on purpose (daemons) are not followed.
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

# Runs without our package and without site-packages: it must start fast and stay small.
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
    """One per gateway, shared by all children. The watcher starts with the first child and again should it be lost."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._groups: set[int] = set()
        self._prctl = _find_prctl()

    @property
    def watcher_pid(self) -> int | None:
        """The process that watches, once there is one."""
        return self._watcher.pid if self._watcher is not None else None

    def before_exec(self) -> Callable[[], None]:
        """What a child must run between fork and exec. It may only use what is already at hand: no imports, no locks."""
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
        """Remember a group, so that a new watcher can be told of it. The child itself told the present one."""
        self._groups.add(group)

    def remove(self, group: int) -> None:
        """The group is gone; its number may belong to a stranger from now on."""
        if group in self._groups:
            self._groups.discard(group)
            self._tell(b"%d\n" % -group)

    def look_again(self) -> None:
        """A child announced itself and then could not become its program: the watcher drops what no longer exists."""
        self._tell(b"0\n")

    async def close(self) -> None:
        """Let the watcher end what is left and go."""
        watcher, self._watcher = self._watcher, None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if watcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(watcher.wait, _CLOSE_S)

    def _tell(self, line: bytes) -> None:
        if self._pipe is not None:
            # A lost watcher is replaced with the next child, and then told of the groups that exist then.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, line)

    def _open_pipe(self) -> int:
        if self._watcher is not None and self._watcher.poll() is not None and self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._pipe is None:
            self._pipe = self._start_watcher()
            for group in self._groups:
                self._tell(b"%d\n" % group)
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
