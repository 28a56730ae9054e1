"""Workers for steps: none until the first step, at most a few at once, none when no step has run for a while.

Steps wait for a worker in the order in which they came. The gateway starts no more of them at once than there are workers, so it is
its queue that decides who is next (`gateway/scripts/fair_turns.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from taskgate.scripts.frames import BadReply
from taskgate.scripts.worker_process import WorkerCommand, WorkerEnded, WorkerLate, WorkerProcess
from taskgate.telemetry.logs import log

_MAX_STEPS: Final = 2_000
"""After this many steps a worker is replaced, and whatever it may have leaked is gone."""


class StepLost(Exception):
    """The worker failed. Nothing of the step has had an effect."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Exchange(msgspec.Struct, frozen=True):
    """One request and what its reply may be."""

    request: bytes
    max_body: int
    max_snapshot: int
    seconds: float


class WorkerPool:
    """Owns the workers. Every worker is either free, or used by one step."""

    def __init__(self, command: Callable[[], WorkerCommand], *, maximum: int, idle_s: float) -> None:
        self._command = command
        self._idle_s = idle_s
        self._most = maximum
        self._slots = asyncio.Semaphore(maximum)
        self._threads = ThreadPoolExecutor(max_workers=2 * maximum + 1, thread_name_prefix="script-worker")
        self._free: list[WorkerProcess] = []
        self._used: set[WorkerProcess] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def worker_pids(self) -> list[int]:
        """The processes that exist now."""
        return sorted(worker.pid for worker in (*self._free, *self._used))

    async def run(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """Return the reply of a worker. Raises StepLost."""
        async with self._slots:
            if self._closed:
                raise StepLost("closed", "The gateway is shutting down.")
            if self._free:
                # A free worker may have been killed in the meantime; the step is then run once more, in a new one.
                with contextlib.suppress(WorkerEnded):
                    return await self._run_in(self._free.pop(), exchange)
            try:
                return await self._run_in(await self._start(), exchange)
            except WorkerEnded as error:
                raise StepLost("worker_ended", f"The worker of the script ended: {error}.") from None

    async def _start(self) -> WorkerProcess:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._threads, lambda: WorkerProcess(self._command()))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._discard_started)
            raise
        except OSError as error:
            raise StepLost("worker_not_started", f"No worker could be started: {error}.") from None

    def _discard_started(self, started: asyncio.Future[WorkerProcess]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._end(started.result())

    async def _run_in(self, worker: WorkerProcess, exchange: Exchange) -> tuple[bytes, bytes]:
        if self._closed:
            self._end(worker)
            raise StepLost("closed", "The gateway is shutting down.")
        self._used.add(worker)
        loop = asyncio.get_running_loop()
        keep = False
        try:
            reply = await loop.run_in_executor(
                self._threads,
                worker.exchange,
                exchange.request,
                exchange.max_body,
                exchange.max_snapshot,
                exchange.seconds,
            )
            keep = worker.steps < _MAX_STEPS and not self._closed
            return reply
        except WorkerLate:
            raise StepLost(
                "worker_late", f"The worker did not reply within {exchange.seconds:g} s and was ended."
            ) from None
        except BadReply as error:
            raise StepLost("worker_reply", f"The worker broke the protocol and was ended: {error}.") from None
        except WorkerEnded:
            raise WorkerEnded(await self._ended(worker)) from None
        finally:
            self._used.discard(worker)
            if keep:
                self._free.append(worker)
                self._watch_idle()
            else:
                self._end(worker)

    async def _ended(self, worker: WorkerProcess) -> str:
        worker.kill()
        how = await asyncio.get_running_loop().run_in_executor(self._threads, worker.reap)
        if worker.said:
            # For the operator only: it names folders of this machine.
            log.error("a worker of scripts ended", how=how, said=worker.said)
            return f"{how}; the log of the gateway has what it reported"
        return how

    def discard_free(self) -> None:
        """End the free workers, after a reply that cannot be trusted."""
        while self._free:
            self._end(self._free.pop())

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._threads.submit(worker.reap)

    def _watch_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self.discard_free)

    async def aclose(self) -> None:
        """End all workers. Steps that run fail."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        for worker in self._used:
            worker.kill()
        self.discard_free()
        # Every step holds a slot, and ends now that its worker has.
        for _ in range(self._most):
            await self._slots.acquire()
        self._threads.shutdown(wait=False)
