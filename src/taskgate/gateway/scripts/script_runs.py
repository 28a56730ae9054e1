"""Run each script once in this process, and stop one that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.core.scripts.record import ScriptRecord
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, PlanReplaced, ScriptCancelled, ScriptDue, TaskChanged
from taskgate.gateway.scripts.cancel_call import cancel_call
from taskgate.gateway.scripts.script_chain import calls_of, kept_chain
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.gateway.scripts.script_result import calls_by_execution, executed_by, how_to_resume, resume_data
from taskgate.gateway.scripts.script_run import ScriptRun
from taskgate.store.operations.scripts import FindScript
from taskgate.store.operations.tasks import CancelDelivered
from taskgate.telemetry.logs import log


class ScriptRuns:
    def __init__(self, parts: ScriptParts, events: EventHub) -> None:
        self._parts = parts
        self._closing = False
        self._running: dict[str, tuple[ScriptRun, asyncio.Task[None]]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        events.subscribe(ScriptDue, lambda event: self.start(event.task))
        events.subscribe(ScriptCancelled, lambda event: self._cancelled(event.task))
        events.subscribe(TaskChanged, self._changed)
        events.subscribe(PlanReplaced, self._plan_replaced)

    def __len__(self) -> int:
        return len(self._running)

    def start(self, task: Task) -> None:
        """Run the script unless it is running."""
        if task.id in self._running or self._closing:
            return
        run = ScriptRun(self._parts, task)
        running = asyncio.get_running_loop().create_task(self._guarded(task, run))
        self._running[task.id] = (run, running)
        running.add_done_callback(lambda _: self._running.pop(task.id, None))

    def _changed(self, event: TaskChanged) -> None:
        known = self._running.get(event.task.parent) if event.task.parent else None
        if known is not None:
            known[0].call_changed(event.task)

    def _plan_replaced(self, _event: PlanReplaced) -> None:
        """Each script checks whether it may go on."""
        for run, _ in self._running.values():
            run.wake.set()

    async def _guarded(self, task: Task, run: ScriptRun) -> None:
        """Log a failed run. The script is continued from its newest step, or ended if the fault is in the gateway."""
        try:
            await run.run()
        except TaskgateError as problem:
            log.error("a script stopped; it will be continued", task=task.id, why=problem.message)
            self._parts.tasks.runs.interrupted.add(task.id)
        except Exception as fault:  # one run of a script: nothing else would end it
            log.error("the run of a script failed", task=task.id, exc_info=fault)
            await self._end_internal(task)

    async def _end_internal(self, task: Task) -> None:
        records = self._parts.tasks.records
        text = f"Internal error of the gateway while running this script. Its log has the details. {how_to_resume(task.id)}"
        try:
            # Before its end is stored: a crash in between would leave calls that no script waits for.
            await self._cancel_calls(task)
            calls, stored = await kept_chain(records.store, task), await records.store.ask(FindScript(task.id))
            record = stored.record if stored is not None else ScriptRecord()
            data = {**resume_data(task.id), "calls": calls_by_execution(calls, record)}
            fault = GatewayFault("internal", text, executed=executed_by(calls), data=data)
            await records.conclude(task.id, endings.by_error(task, fault))
        except Exception as problem:  # one run of a script: its failure may also prevent storing its end
            log.error("a script could not be ended; this is retried", task=task.id, exc_info=problem)
            self._parts.tasks.runs.interrupted.add(task.id)

    def _cancelled(self, task: Task) -> None:
        self._in_background(self._stop(task))

    async def _stop(self, task: Task) -> None:
        """Stop the run, then cancel the calls that have not ended. The script can make no further calls, because it has ended in
        the store.
        """
        known = self._running.get(task.id)
        if known is not None:
            known[1].cancel()
            await asyncio.gather(known[1], return_exceptions=True)
        await self._cancel_calls(task)
        if task.cancel_unsent:
            await self._parts.tasks.store.do(CancelDelivered(task.id))

    async def _cancel_calls(self, task: Task) -> None:
        for call in await calls_of(self._parts.tasks.store, task.id):
            await cancel_call(self._parts, call.task.id, "its script was cancelled")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.get_running_loop().create_task(self._logged(work))
        self._cancelling.add(doing)
        doing.add_done_callback(self._cancelling.discard)

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TaskgateError as problem:
            log.warning("calls of a cancelled script are cancelled later", why=problem.message)

    async def close(self) -> None:
        """Stop all runs without ending their scripts: the next start continues them from the store."""
        self._closing = True
        running = [*(run for _, run in self._running.values()), *self._cancelling]
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._parts.interpreter.aclose()
        self._parts.sources.close()
