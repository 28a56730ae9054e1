"""Describing a child process, finding its program, starting it and noticing its end.

A child gets only a small, harmless part of our environment, so that our secrets do not leak into every server; whatever else
it needs must be named. There is never a shell in between.

The event loops can start processes too, but one of them lets every child inherit spare descriptors, and neither tells of an
exit before it has taken the process off the table. Both matter here: a child must hold nothing of ours, and its group must
be ended while its number cannot yet belong to somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taskgate.mcp.failures import ChildFailure, ChildProblem

# Makes sure that no child or grandchild outlives the gateway, even if the gateway is killed without warning.
#
# A tiny watcher process in a session of its own reads a pipe from us. The pipe tells it which process groups exist;
# when the pipe closes, because we ended in whatever way, it ends those groups. A child announces its own group before
# it becomes the server, so there is no moment in which it could be overlooked. On Linux the kernel kills the direct
# child as well. Processes that leave their group on purpose (daemons) are not followed.

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


_INHERITED = frozenset(
    {"PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "VIRTUAL_ENV", "SystemRoot"}
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A command as the operator wrote it."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    inherits: Mapping[str, str] | None = None
    """The environment of the client it is started for; None: ours."""


def harmless_part(environment: Mapping[str, str]) -> dict[str, str]:
    """What every child may know. Exported shell functions are never passed on."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }


def child_environment(spec: ChildSpec) -> dict[str, str]:
    """The harmless part of its client's environment or of ours, then what the entry names."""
    return {**harmless_part(os.environ if spec.inherits is None else spec.inherits), **(spec.env or {})}


def find_program(spec: ChildSpec, environment: Mapping[str, str]) -> str:
    """The absolute path of the command, or a ChildFailure that says what is missing."""
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        raise ChildFailure(ChildProblem.NOT_FOUND, f"the working directory {spec.cwd!r} does not exist")
    command = spec.command
    if os.path.dirname(command) and not os.path.isabs(command):
        command = os.path.abspath(os.path.join(spec.cwd or ".", command))
    found = shutil.which(command, path=environment.get("PATH"))
    if found is None:
        raise ChildFailure(ChildProblem.NOT_FOUND, f"the command {spec.command!r} was not found or is not executable")
    return found


def spawn(spec: ChildSpec, reaper: Reaper | None) -> subprocess.Popen[bytes]:
    """Start it with three pipes in a session of its own, or raise ChildFailure.

    This blocks for the few milliseconds of a fork and must stay on the event loop's thread: the kernel ties the child to
    the *thread* that started it.
    """
    environment = child_environment(spec)
    program = find_program(spec, environment)
    try:
        return subprocess.Popen(
            [program, *spec.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            cwd=spec.cwd,
            start_new_session=True,
            preexec_fn=None if reaper is None else reaper.before_exec(),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if reaper is not None:
            reaper.look_again()
        raise ChildFailure(ChildProblem.NOT_STARTED, f"{spec.command!r} could not be started: {error}") from error


def watch_exit(process: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> None:
    """Call `on_exit` once in the event loop when the process has ended; where possible, before it is reaped."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        threading.Thread(target=_wait_in_thread, args=(loop, process, on_exit), daemon=True).start()
        return

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_exit()

    loop.add_reader(descriptor, ended)


def _wait_in_thread(
    loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], on_exit: Callable[[], None]
) -> None:
    process.wait()
    with contextlib.suppress(RuntimeError):  # The loop is closed: nobody wants to know any more.
        loop.call_soon_threadsafe(on_exit)
