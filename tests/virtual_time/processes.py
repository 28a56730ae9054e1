"""Programs that tests start, run in the test's process: each with its own arguments, environment, streams and end.

`taskgate serve` and the scripted servers of the tests are ordinary asyncio programs. Where a test runs in virtual time, starting
one (`asyncio.create_subprocess_exec`, or the gateway's own `spawn` of a stdio server) runs it on the same loop instead. A program
is read from its file as Python would run it, with its own `sys`, `os`, `time` and `asyncio.run`; its standard streams are real
pipes.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, Final

from tests.virtual_time.loop import PROCESS, Process, VirtualLoop

from taskgate.assembly.open_app import open_app
from taskgate.config.load import LoadedConfig, load
from taskgate.lifecycle import lifecycle
from taskgate.local_gateway import NoExtraEndpoint
from taskgate.store.sqlite.store import SqliteStore

FIRST_PID: Final = 5_000_000
"""Above every number the kernel gives to a process, so that a signal can never reach another process."""


class _Main(BaseException):
    """Raised by a program's `asyncio.run`: the coroutine that it runs from now on."""

    def __init__(self, main: Coroutine[Any, Any, Any]) -> None:
        super().__init__()
        self.main = main


class Output:
    """A program's standard output or error: a pipe that is never waited for, or a file."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._rest = bytearray()
        self.buffer = self

    def fileno(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def write(self, expected_text: str | bytes) -> int:
        if self._descriptor is None:
            raise BrokenPipeError
        waiting = bool(self._rest)
        self._rest += expected_text.encode() if isinstance(expected_text, str) else expected_text
        if not waiting:
            self._push()
            if self._rest:
                self._loop.add_writer(self._descriptor, self._push)
        return len(expected_text)

    def _push(self) -> None:
        assert self._descriptor is not None
        with contextlib.suppress(BlockingIOError):
            try:
                del self._rest[: os.write(self._descriptor, self._rest)]
            except OSError as broken:
                if isinstance(broken, BlockingIOError):
                    raise
                self._rest.clear()
        if not self._rest:
            self._loop.remove_writer(self._descriptor)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return self._descriptor is None

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


class RunningProgram(Process):
    """One started program."""

    def __init__(self, loop: VirtualLoop, pid: int, argv: list[str], env: Mapping[str, str]) -> None:
        super().__init__(" ".join(argv[:3]))
        self._loop = loop
        self.pid = pid
        self.argv = argv
        self.env = dict(env)
        self.stdin: IO[bytes] | None = None
        self.stdout: Any = None
        self.stderr: Any = None
        self.returncode: int | None = None
        self.ended: asyncio.Future[int] = loop.create_future()
        self.children: list[RunningProgram] = []
        self.ends_of_parent: tuple[IO[bytes], ...] = ()
        self.life: lifecycle.Lifecycle | None = None

    def start(self) -> None:
        parent = PROCESS.get()
        if isinstance(parent, RunningProgram):
            parent.children.append(self)
        self._loop.create_task(self._run(), name=self.name, context=self.context())

    async def _run(self) -> None:
        code = 1
        try:
            await self._main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        except asyncio.CancelledError:
            code = -signal.SIGTERM
        except BaseException:
            self._say(traceback.format_exc())
        self.end(code)

    async def _main(self) -> None:
        _, *rest = self.argv
        if rest[0] == "-P":
            del rest[0]
        if rest[:3] == ["-m", "taskgate", "serve"]:
            await self._serve(rest[3:])
            return
        path = _file_of(rest)
        arguments = rest[2:] if rest[0] == "-m" else rest[1:]
        module = {
            "__name__": "__main__",
            "__file__": str(path),
            "__builtins__": _builtins_for(self, [str(path), *arguments]),
        }
        try:
            exec(_compiled(path), module)
        except _Main as wanted:
            await wanted.main

    async def _serve(self, options: list[str]) -> None:
        """`taskgate serve -c FILE --host HOST --port PORT`, from where its command line ends."""
        given = dict(zip(options[::2], options[1::2], strict=True))
        self.life = new_lifecycle(load(given["-c"], self.env), given["--host"])
        await self.life.serve(int(given["--port"]), lambda _host, _port: None)

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            return
        if number in self.signals:
            self._loop.call_soon(self.signals[number], context=self.context())
        elif number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            self.kill(-number)

    def kill(self, code: int = -signal.SIGKILL) -> None:
        """Nothing of it runs again. What a gateway had committed is what its next start finds."""
        if self.returncode is not None:
            return
        self._loop.kill(self)
        if self.life is not None:
            abandon_store(self._loop, self.life)
        for child in self.children:
            child.kill()
            for pipe in child.ends_of_parent:
                self._loop.drop_pipe(pipe)
        self.end(code)

    def end(self, code: int) -> None:
        if self.returncode is not None:
            return
        self.returncode = code
        self._loop.kill(self)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                self._loop.drop_pipe(stream)
        if not self.ended.done():
            self.ended.set_result(code)

    def _say(self, what: str) -> None:
        if self.stderr is not None:
            with contextlib.suppress(OSError):
                self.stderr.write(what)


def new_lifecycle(loaded: LoadedConfig, host: str) -> lifecycle.Lifecycle:
    """A gateway as `taskgate serve` builds it; without the endpoint for `taskgate stdio`, which is a real socket."""
    return lifecycle.Lifecycle(open_app(loaded), host, NoExtraEndpoint, when_lost=lambda: None)


def abandon_store(loop: VirtualLoop, life: lifecycle.Lifecycle) -> None:
    """As after a kill: the state directory holds what was committed, and no process holds a lock on it."""
    store = life.app.store
    assert isinstance(store, SqliteStore)
    while store.is_committing and not loop.has_arrivals:
        time.sleep(0.0005)
    loop.abandoned.append(store.close)
    state = life.app.loaded.state_dir
    left = state.rename(next(free for n in itertools.count(1) if not (free := Path(f"{state}-{n}")).exists()))
    shutil.copytree(left, state, ignore=shutil.ignore_patterns("*.db", "*.db-*", "*.lock"))
    for database in left.glob("*.db"):
        with (
            contextlib.closing(sqlite3.connect(database)) as old,
            contextlib.closing(sqlite3.connect(state / database.name)) as copy,
        ):
            old.backup(copy)


class Processes:
    """The programs of one loop, by number."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._pids = itertools.count(FIRST_PID)
        self._running: dict[int, RunningProgram] = {}

    def new(self, argv: list[str], env: Mapping[str, str] | None) -> RunningProgram:
        if argv[0] != sys.executable:
            raise NotImplementedError(f"only Python programs run in virtual time, not {argv[0]!r}")
        program = RunningProgram(self._loop, next(self._pids), argv, os.environ if env is None else env)
        self._running[program.pid] = program
        return program

    def get(self, pid: int) -> RunningProgram | None:
        return self._running.get(pid)

    def end_all(self) -> None:
        for program in self._running.values():
            program.kill()


def _file_of(words: list[str]) -> Path:
    if words[0] != "-m":
        return Path(words[0])
    found = importlib.util.find_spec(words[1])
    assert found is not None, f"there is no module {words[1]}"
    assert found.origin is not None, f"{words[1]} has no file"
    return Path(found.origin)


@cache
def _compiled(path: Path) -> CodeType:
    return compile(path.read_text(), str(path), "exec")


class ModuleOf(ModuleType):
    """A module as one program sees it: some names are its own."""

    def __init__(self, real: ModuleType, **own: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(own)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _builtins_for(program: RunningProgram, argv: list[str]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    own = {
        "sys": ModuleOf(sys, argv=argv, stdin=program.stdin, stdout=program.stdout, stderr=program.stderr, exit=_leave),
        "os": ModuleOf(os, environ=program.env, getpid=lambda: program.pid, _exit=program.end),
        "time": ModuleOf(time, time=loop.wall, monotonic=loop.time, perf_counter=loop.time),
        "asyncio": ModuleOf(asyncio, run=_become),
    }

    def import_own(name: str, *more: Any) -> Any:
        return own.get(name) or builtins.__import__(name, *more)

    return {**vars(builtins), "__import__": import_own}


def _leave(code: object = None) -> None:
    raise SystemExit(code)


def _become(main: Coroutine[Any, Any, Any], **_: Any) -> None:
    raise _Main(main)


class ProgramTransport(asyncio.SubprocessTransport):
    """What `asyncio.create_subprocess_exec` gets; its standard streams are files or nothing."""

    def __init__(self, program: RunningProgram) -> None:
        super().__init__()
        self._program = program

    def get_pid(self) -> int:
        return self._program.pid

    def get_returncode(self) -> int | None:
        return self._program.returncode

    def get_pipe_transport(self, fd: int) -> None:
        return None

    def send_signal(self, signal: int) -> None:
        self._program.send_signal(signal)

    def terminate(self) -> None:
        self._program.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._program.kill()

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return self._program.returncode is not None

    async def _wait(self) -> int:
        return await asyncio.shield(self._program.ended)


class ChildOfGateway:
    """What the gateway's own `spawn` gets: the parts of `subprocess.Popen` that it uses."""

    def __init__(self, program: RunningProgram) -> None:
        self._program = program
        self.pid = program.pid
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        program.stdin, program.stdout, program.stderr = (
            os.fdopen(read_in, "rb", 0),
            Output(write_out),
            Output(write_err),
        )
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(write_in, "wb", 0),
            os.fdopen(read_out, "rb", 0),
            os.fdopen(read_err, "rb", 0),
        )
        program.ends_of_parent = (self.stdin, self.stdout, self.stderr)

    def wait(self, timeout: float | None = None) -> int:
        assert self._program.returncode is not None, "it has not ended"
        return self._program.returncode

    def poll(self) -> int | None:
        return self._program.returncode

    def on_exit(self, then: Callable[[], None]) -> None:
        self._program.ended.add_done_callback(lambda _: then())
