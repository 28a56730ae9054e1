"""Start a child process and detect its exit.

A child receives a small safe part of the gateway's environment, so that secrets do not leak into every server; all other
variables must be configured. No shell is involved.

The process functions of the event loops are not used: one of them lets children inherit descriptors, and both report an
exit only after the process was reaped. A child must not hold the gateway's descriptors, and its group must be killed
while its pid cannot be reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping

import msgspec

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.stdio.reaper import Reaper

_INHERITED = frozenset(
    {"PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "VIRTUAL_ENV", "SystemRoot"}
)


class ChildSpec(msgspec.Struct, frozen=True):
    """A command as configured."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    inherits: Mapping[str, str] | None = None
    """The environment of the client that it is started for; None: that of the gateway."""


def safe_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every child may receive. Exported shell functions are excluded."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }


def child_environment(spec: ChildSpec) -> dict[str, str]:
    """Return the safe part of the client's or the gateway's environment, plus the configured variables."""
    return {**safe_env(os.environ if spec.inherits is None else spec.inherits), **(spec.env or {})}


def find_program(spec: ChildSpec, environment: Mapping[str, str]) -> str:
    """Return the absolute path of the command. Raises ChildFailure if it or the working directory does not exist."""
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
    """Start the process with three pipes in its own session. Raises ChildFailure.

    This blocks for the few milliseconds of a fork and must run on the event loop's thread: the kernel's parent-death
    signal is tied to the *thread* that started the child.
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
            reaper.prune()
        raise ChildFailure(ChildProblem.NOT_STARTED, f"{spec.command!r} could not be started: {error}") from error


def watch_exit(process: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> None:
    """Call `on_exit` once in the event loop when the process has exited; where possible, before it is reaped."""
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
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(on_exit)
