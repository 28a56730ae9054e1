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
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.stdio.reaper import Reaper

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
