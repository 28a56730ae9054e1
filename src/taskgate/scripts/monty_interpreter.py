"""Scripts run by Monty, in workers with limits.

This process never imports the interpreter: it is found by the metadata of its package, and loaded by the workers only.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from taskgate.ports.script_interpreter import (
    Availability,
    CallOutcome,
    Failed,
    FailureReason,
    ScriptLimits,
    ScriptProgram,
    Step,
    StepFacts,
    StepOutput,
)
from taskgate.scripts.frames import BadReply, read_reply, resume_request, start_request
from taskgate.scripts.worker_pool import Exchange, StepLost, WorkerPool
from taskgate.scripts.worker_process import WorkerCommand

INSTALL: Final = "Install the extra: pip install 'taskgate[scripts]'"
_SNAPSHOT_FORMAT: Final = 1
"""Version of what the worker adds to the interpreter's own state. Increment it when that changes."""
_IDLE_S: Final = 10.0
_CPU_SECONDS: Final = 3_600
_OWN_MEMORY: Final = 512 * 1024 * 1024
"""Address space of programs, libraries and threads, most of which is never used."""
_ESCAPED: Final = 6
"""The maximum number of bytes of one character in JSON."""
_SLACK: Final = 1024 * 1024
_GRACE_S: Final = 15.0
"""For starting the worker, converting values, and a busy machine."""


class MontyInterpreter:
    """Implements `ScriptInterpreter`."""

    def __init__(self, *, max_workers: int | None = None, idle_s: float = _IDLE_S, grace_s: float = _GRACE_S) -> None:
        """`max_workers` is one per core if not given. A worker is ended `grace_s` after the time that a step may take."""
        self._grace_s = grace_s
        self._memory_bytes = 0
        self._numbers = itertools.count(1)
        self._workers = max_workers or _cores()
        self.pool = WorkerPool(self._command, maximum=self._workers, idle_s=idle_s)

    @cached_property
    def _installed(self) -> tuple[str, str, str] | None:
        """The version, the folder of the package and the interpreter's program."""
        from importlib import metadata, util  # on use: gateways without scripts start sooner

        try:
            version = metadata.version("pydantic-monty-client")
            runtime = metadata.distribution("pydantic-monty-runtime")
        except metadata.PackageNotFoundError:
            return None
        spec = util.find_spec("pydantic_monty")
        programs = [
            Path(str(runtime.locate_file(file))) for file in runtime.files or () if file.name in ("monty", "monty.exe")
        ]
        if spec is None or spec.origin is None or not programs:
            return None
        return version, str(Path(spec.origin).parent.parent), str(programs[0].resolve())

    @property
    def version(self) -> str:
        """What a snapshot is bound to."""
        return "" if self._installed is None else f"monty-{self._installed[0]}-{_SNAPSHOT_FORMAT}"

    @property
    def parallel_steps(self) -> int:
        """One for each worker."""
        return self._workers

    def availability(self) -> Availability:
        """Whether the extra is installed."""
        return Availability(False, INSTALL) if self._installed is None else Availability(True)

    def _command(self) -> WorkerCommand:
        if self._installed is None:
            raise FileNotFoundError(INSTALL)
        _, packages, binary = self._installed
        return WorkerCommand(packages, binary, _OWN_MEMORY + 3 * self._memory_bytes, _CPU_SECONDS)

    async def start(self, program: ScriptProgram, limits: ScriptLimits, facts: StepFacts) -> Step:
        """Run the first step."""
        number = next(self._numbers)
        return await self._step(number, start_request(number, program, limits, facts), limits)

    async def resume(
        self, snapshot: bytes, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits, facts: StepFacts
    ) -> Step:
        """Run a later step."""
        number = next(self._numbers)
        return await self._step(number, resume_request(number, snapshot, outcomes, limits, facts), limits)

    async def _step(self, number: int, request: bytes, limits: ScriptLimits) -> Step:
        self._memory_bytes = max(self._memory_bytes, limits.memory_bytes)
        try:
            body, snapshot = await self.pool.run(_exchange(request, limits, self._grace_s))
            return read_reply(number, body, snapshot)
        except StepLost as error:
            return _lost(error.kind, str(error))
        except BadReply as error:
            self.pool.discard_free()
            return _lost("worker_reply", f"The worker broke the protocol: {error}.")

    async def aclose(self) -> None:
        """End all workers."""
        await self.pool.aclose()


def _exchange(request: bytes, limits: ScriptLimits, grace_s: float) -> Exchange:
    return Exchange(
        request,
        max_body=_ESCAPED * (limits.result_bytes + limits.output_bytes) + _SLACK,
        max_snapshot=limits.snapshot_bytes + _SLACK,
        seconds=limits.wall_seconds + grace_s,
    )


def _lost(kind: str, message: str) -> Failed:
    return Failed(reason=FailureReason.WORKER, error_type=kind, message=message, line=0, output=StepOutput())


def _cores() -> int:
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1
