"""Starting an operating system process and noticing its end.

The event loops can start processes too, but one of them lets every child inherit spare descriptors, and neither tells of an
exit before it has taken the process off the table. Both matter here: a child must hold nothing of ours, and its group must
be ended while its number cannot yet belong to somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable

from taskgate.upstreams.stdio.failure import ChildFailure, ChildProblem
from taskgate.upstreams.stdio.reaper import Reaper
from taskgate.upstreams.stdio.spec import ChildSpec, child_environment, find_program


def spawn(spec: ChildSpec, reaper: Reaper) -> subprocess.Popen[bytes]:
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
            preexec_fn=reaper.before_exec(),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
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
