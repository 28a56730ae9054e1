"""An asyncio event loop whose time is virtual and whose connections are in memory.

The clock does not advance while anything can run. When nothing can, it jumps to the next timer; a wait of 45 seconds takes no real
time and cannot be late on a busy machine. The loop really waits only for work that it passed to a thread (the store's commit):
until that has finished, the clock does not advance. What runs in an executor in production runs here in the loop's own thread, one
iteration later, so that a run has one order of events and no other.

A `Process` is what the loop can kill: everything that was scheduled from within it never runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.virtual_time.network import Network

EPOCH: Final = 1_790_000_000.0
"""The wall clock at the start of every test, so that dates are the same in every run."""
OUTSIDE_S: Final = 120.0
"""How long, in real seconds, a thread may take before the wait counts as a deadlock."""
CPU_LIMIT_S: Final = 60.0
"""A test that computes for this long while its virtual time runs on waits for something that never comes."""
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("seam_process", default=None)


class Deadlock(AssertionError):
    """Nothing can run and nothing will ever happen. The message shows what every task waits for."""


class Process:
    """Represents an operating system process: a gateway that can be killed between two steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        """What it logged: level, event, facts."""
        self.signals: dict[int, Callable[[], object]] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> contextvars.Context:
        """A context in which everything that is started belongs to this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context


class _PipesOnly(selectors.DefaultSelector):
    """Polls pipes between programs of this process without waiting; virtual time moves when none is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            return []
        ready = [(key, mask) for key, mask in super().select(0) if self._is_for_the_living(key, mask)]
        if not ready:
            self.loop.pass_time(timeout)
        return ready

    @staticmethod
    def _is_for_the_living(key: selectors.SelectorKey, mask: int) -> bool:
        reader, writer = key.data
        handle = reader if mask & selectors.EVENT_READ and reader is not None else writer
        return handle is not None and not _belongs_to_the_dead(handle._context)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 1000.0
        self.cpu_s = 0.0
        """The virtual CPU time of the process: only `compute` adds to it."""
        self._offset = EPOCH - self._now
        self._arrived: deque[asyncio.Handle] = deque()
        self._arrival = threading.Event()
        self._own_thread = threading.get_ident()
        self._give_up_at = time.process_time() + CPU_LIMIT_S
        self._unregistered: str | None = None
        self.outside: list[Callable[[], bool]] = []
        """Each returns whether a thread has work of ours under way that will come back by `call_soon_threadsafe`."""
        from tests.virtual_time.processes import Processes

        self.abandoned: list[Callable[[], Awaitable[None]]] = []
        """How to close the stores of killed gateways, when the test is over."""
        self.when_closed: Callable[[], None] = lambda: None
        self.network = Network(self)
        self.processes = Processes(self)
        selector = _PipesOnly()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_make_task)

    # Time

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    def set_wall(self, seconds: float) -> None:
        """Set the machine's clock; monotonic time is not affected."""
        self._offset = seconds - self._now

    def pass_time(self, timeout: float | None) -> None:
        """Called when nothing can run: take the results of threads, otherwise jump to the next timer."""
        if self._unregistered is not None:
            raise Deadlock(
                f"Thread {self._unregistered!r} called into the loop without being registered: see `outside`."
            )
        if self._arrived or any(has_work() for has_work in self.outside):
            self._take_arrivals()
        elif timeout is None:
            raise Deadlock(f"Nothing can run, no timer is set: a task waits for ever.\n{self.stacks()}")
        elif time.process_time() > self._give_up_at:
            raise Deadlock(f"The test computed too long; virtual time is {self._now:.1f}.\n{self.stacks()}")
        else:
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]

    def _take_arrivals(self) -> None:
        if not self._arrived and not self._arrival.wait(OUTSIDE_S):
            raise Deadlock(f"A thread did not come back within {OUTSIDE_S:.0f} real seconds.\n{self.stacks()}")
        self._arrival.clear()
        while self._arrived:
            handle = self._arrived.popleft()
            if not _belongs_to_the_dead(handle._context):  # type: ignore[attr-defined]
                self._ready.append(handle)  # type: ignore[attr-defined]

    @property
    def has_arrivals(self) -> bool:
        """Whether a thread has returned a result that was not processed yet."""
        return bool(self._arrived)

    def run_until_complete(self, future: Any) -> Any:
        """One test, or one fixture: each has its own limit."""
        self.give_up_after(CPU_LIMIT_S)
        return super().run_until_complete(future)

    def give_up_after(self, cpu_seconds: float) -> None:
        self._give_up_at = time.process_time() + cpu_seconds

    def leap(self, seconds: float) -> None:
        """The machine was asleep, or other programs used the CPU: all clocks go on at once, and timers that were due meanwhile fire
        together."""
        self._now += seconds

    def compute(self, seconds: float) -> None:
        """One step of this process used the CPU for this long."""
        self.cpu_s += seconds
        self._now += seconds

    def stacks(self) -> str:
        """What every task waits for."""
        return "\n".join(_stack(task) for task in sorted(asyncio.all_tasks(self), key=lambda each: each.get_name()))

    # Scheduling by process

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        context = contextvars.copy_context() if context is None else context
        if _belongs_to_the_dead(context):
            return _cancelled(asyncio.Handle(callback, args, self, context))
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        context = contextvars.copy_context() if context is None else context
        if _belongs_to_the_dead(context):
            return _cancelled(asyncio.TimerHandle(when, callback, args, self, context))
        return super().call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        if threading.get_ident() == self._own_thread:
            return self.call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        if not any(has_work() for has_work in self.outside):
            self._unregistered = threading.current_thread().name
        self._arrived.append(handle)
        self._arrival.set()
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        self.call_soon(run_into, future, func, args)
        return future

    def kill(self, process: Process) -> None:
        """Nothing of it ever runs again: no `finally`, no timer, no callback. Its peers see their connections break."""
        process.is_dead = True
        self._asyncgens.clear()  # type: ignore[attr-defined]
        _IMMORTAL.append(process)
        for task in process.tasks:
            # Or `all_tasks` would return it, and waiting for a task that never runs again would hang.
            asyncio.tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for queue in (self._ready, self._scheduled):  # type: ignore[attr-defined]
            for handle in queue:
                if _belongs_to_the_dead(handle._context):
                    handle.cancel()
        self.network.cut_off(process)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        process = PROCESS.get()
        if process is not None:
            process.signals[sig] = contextvars.copy_context().run(lambda: _bound(callback, args))

    def remove_signal_handler(self, sig: int) -> bool:
        process = PROCESS.get()
        return process is not None and process.signals.pop(sig, None) is not None

    def send_signal(self, process: Process, sig: signal.Signals) -> None:
        self.call_soon(process.signals[sig], context=process.context())

    # Connections

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        if more.get("ssl") or more.get("sock"):
            raise NotImplementedError("in-memory connections are plain; test TLS and ready-made sockets with real ones")
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        sock = more.get("sock")
        address = sock.getsockname()[:2] if sock is not None else (host or "127.0.0.1", port or 0)
        return self.network.listen(protocol_factory, address)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return self.network.resolve(host, port)

    async def subprocess_exec(self, protocol_factory: Any, program: Any, *args: Any, **more: Any) -> Any:
        """Run a Python program on this loop; its standard streams may be files, not pipes of the test."""
        from tests.virtual_time.processes import ProgramTransport

        if subprocess.PIPE in (more.get("stdin"), more.get("stdout"), more.get("stderr")):
            raise NotImplementedError("programs in virtual time do not talk to the test by pipes; start a real process")
        started = self.processes.new([str(program), *map(str, args)], more.get("env"))
        for name in ("stdout", "stderr"):
            if hasattr(more.get(name), "fileno"):
                setattr(started, name, os.fdopen(os.dup(more[name].fileno()), "w", buffering=1))
        transport, protocol = ProgramTransport(started), protocol_factory()
        protocol.connection_made(transport)
        started.start()
        return transport, protocol

    def drop_pipe(self, pipe: Any) -> None:
        """Close an end of a pipe of a program that has ended. Its number may then be used for another pipe."""
        if not pipe.closed:
            self._remove_reader(pipe.fileno())  # type: ignore[attr-defined]
            self._remove_writer(pipe.fileno())  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                pipe.close()

    async def shutdown_asyncgens(self) -> None:
        """Called by the runner when the test is over."""
        self.processes.end_all()
        abandoned, self.abandoned = self.abandoned, []
        for close in abandoned:
            await close()
        await super().shutdown_asyncgens()

    def close(self) -> None:
        self.network.close()
        super().close()
        self.when_closed()


def _stack(task: asyncio.Task[Any]) -> str:
    """Every coroutine on the way to what the task waits for, the innermost last."""
    lines, waits = [f"Task {task.get_name()!r} waits:"], task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None) or getattr(waits, "ag_frame", None)
        if frame is not None:
            lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        waits = (
            getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None) or getattr(waits, "ag_await", None)  # type: ignore[assignment]
        )
    return "\n".join(lines)


def _bound(callback: Any, args: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: callback(*args)


def _belongs_to_the_dead(context: contextvars.Context) -> bool:
    process = context.get(PROCESS)
    return process is not None and process.is_dead


def _cancelled(handle: Any) -> Any:
    handle.cancel()
    return handle


def run_into(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = func(*args)
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(value)


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **more)
    context = more.get("context")
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


_IMMORTAL: list[Process] = []
"""Killed processes. Their suspended coroutines must never be collected: that would run their `finally` blocks."""
