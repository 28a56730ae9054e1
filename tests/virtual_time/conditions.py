"""What differs in virtual time from a gateway in a process of its own, in one place.

It listens in memory, its files are not watched (a reload is a signal), the garbage collector keeps its settings, the store's
committing thread is waited for, a new store gets its schema as a copy of one that was migrated once, log lines go to the program
that wrote them, and stdio servers run on the same loop. What a process has once (the level of its log) is as in a process that
has just begun, regardless of what ran in this one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any
from unittest.mock import patch

from tests.harness.sqlite_schema import migrate_by_copy
from tests.virtual_time.loop import PROCESS, VirtualLoop
from tests.virtual_time.processes import ChildOfGateway, ModuleOf, RunningProgram
from tests.virtual_time.seeds import seeded

from taskgate import clock
from taskgate.core.repeated_lines import RepeatedLines
from taskgate.lifecycle import lifecycle
from taskgate.mcp.stdio import child as child_module
from taskgate.mcp.stdio import process as process_module
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.store.sqlite import store as store_module
from taskgate.store.sqlite.writer import Writer
from taskgate.telemetry.logs import LEVELS, Log, log


class _Bound:
    """Replaces the listening socket; the loop listens in memory at its name."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None: ...


async def _no_changes(_folders: Any, stop: asyncio.Event) -> AsyncGenerator[frozenset[str], None]:
    """Replaces `changed_files`: no file ever changes."""
    await stop.wait()
    return
    yield frozenset()


def _loop() -> VirtualLoop | None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return running if isinstance(running, VirtualLoop) else None


def _start_writer(really: Callable[[Writer], None]) -> Callable[[Writer], None]:
    def start(self: Writer) -> None:
        loop = _loop()
        if loop is not None:
            loop.outside.append(lambda: self.is_committing)
        really(self)

    return start


def _write_line(really: Callable[..., None]) -> Callable[..., None]:
    def write(self: Log, level: str, event: str, facts: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is not None:
            process.log.append((level, event, dict(facts)))
        if isinstance(process, RunningProgram) and process.stderr is not None:
            with contextlib.redirect_stderr(process.stderr):
                really(self, level, event, facts)
        else:
            really(self, level, event, facts)

    return write


def _popen(command: list[str], *, env: dict[str, str], **more: Any) -> Any:
    """Starts a stdio server: on the loop in virtual time, otherwise as a real process."""
    loop = _loop()
    if loop is None:
        return subprocess.Popen(command, env=env, **more)
    program = loop.processes.new(command, env)
    started = ChildOfGateway(program)
    program.start()
    return started


def _before_exec(really: Callable[[Reaper], Any]) -> Callable[[Reaper], Any]:
    def before(self: Reaper) -> Any:
        """Children on the loop end with their gateway, so there is no watcher."""
        return really(self) if _loop() is None else None

    return before


def _watch_exit(really: Callable[..., None]) -> Callable[..., None]:
    def watch(process: Any, on_exit: Callable[[], None]) -> None:
        if isinstance(process, ChildOfGateway):
            process.on_exit(on_exit)
        else:
            really(process, on_exit)

    return watch


def _send(really: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def send(pid: int, number: int) -> None:
        loop = _loop()
        program = loop.processes.get(pid) if loop is not None else None
        if program is None:
            really(pid, number)
        elif program.returncode is not None:
            raise ProcessLookupError(pid)
        else:
            program.send_signal(signal.Signals(number))

    return send


@contextlib.contextmanager
def virtual_conditions(seed: int = 1) -> Iterator[Callable[[], VirtualLoop]]:
    """Provide the factory of loops; the clock uses the newest loop."""
    made: list[VirtualLoop] = []

    def new_loop() -> VirtualLoop:
        made.append(VirtualLoop())
        return made[-1]

    interval = sys.getswitchinterval()
    with contextlib.ExitStack() as stack:
        stack.enter_context(seeded(seed))
        stack.callback(sys.setswitchinterval, interval)
        stack.callback(clock.install(lambda: made[-1].time(), lambda: made[-1].wall(), lambda: made[-1].cpu_s))
        for where, name, placeholder in (
            (lifecycle, "bind", _Bound),
            (lifecycle, "GarbageCollector", lambda: None),
            (store_module, "migrate", migrate_by_copy),
            (Writer, "start", _start_writer(Writer.start)),
            (Log, "_write", _write_line(Log._write)),
            (log, "minimum", LEVELS["info"]),
            (log, "as_text", False),
            (log, "repeated", RepeatedLines()),
            (process_module, "subprocess", ModuleOf(subprocess, Popen=_popen)),
            (Reaper, "before_exec", _before_exec(Reaper.before_exec)),
            (child_module, "watch_exit", _watch_exit(child_module.watch_exit)),  # type: ignore[attr-defined]
            (os, "kill", _send(os.kill)),
            (os, "killpg", _send(os.killpg)),
        ):
            stack.enter_context(patch.object(where, name, placeholder))
        stack.enter_context(patch("taskgate.lifecycle.reloading.changed_files", _no_changes))
        yield new_loop


def virtual_loop() -> VirtualLoop:
    """A loop that sets up these conditions and removes them when it is closed."""
    stack = contextlib.ExitStack()
    loop = stack.enter_context(virtual_conditions())()
    loop.when_closed = stack.close
    return loop
