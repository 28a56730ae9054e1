"""The tasks of a scripted upstream, in the words of either generation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

from tests.virtual_time.callers import META
from tests.virtual_time.upstream_call import Call, Failure, OwnTask
from tests.virtual_time.waiting import the_loop

Wire = dict[str, Any]


class OwnTasks:
    def __init__(self, name: str, stateless: bool) -> None:
        self.name = name
        self._stateless = stateless
        self._tasks: dict[str, OwnTask] = {}
        self._numbers = itertools.count(1)

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.run.cancel()

    def wanted(self, call: Call) -> bool:
        declared = call.meta.get(f"{META}clientCapabilities") or {}
        return f"{META}tasks" in (declared.get("extensions") or {}) if self._stateless else "task" in call.params

    def begin(self, work: Coroutine[Any, Any, Any], call: Call) -> OwnTask:
        task_id = f"{self.name}-task-{next(self._numbers)}"
        run = the_loop().create_task(work, name=f"{self.name}: {task_id}")
        run.add_done_callback(lambda done: done.cancelled() or done.exception())
        task = self._tasks[task_id] = call.task = OwnTask(task_id, run, call.session)
        return task

    def shown(self, task: OwnTask) -> Wire:
        run, now = task.run, "2026-01-01T00:00:00Z"
        status = "working"
        if run.done():
            status = "cancelled" if run.cancelled() else "failed" if run.exception() else "completed"
        ttl, interval = ("ttlMs", "pollIntervalMs") if self._stateless else ("ttl", "pollInterval")
        shown: Wire = {"taskId": task.id, "status": status, "createdAt": now, "lastUpdatedAt": now}
        shown |= {ttl: None, interval: 1000}
        if self._stateless and status == "completed":
            shown["result"] = run.result()
        elif self._stateless and status == "working" and task.inputs:
            shown |= {"status": "input_required", "inputRequests": dict(task.inputs)}
        return shown

    async def answer(self, method: str, call: Call) -> Any:
        if method == "tasks/list":
            return {"tasks": [self.shown(task) for task in self._tasks.values() if task.session == call.session]}
        task = self._tasks.get(call.params.get("taskId", ""))
        if task is None or task.session != call.session:
            raise Failure(-32602, "there is no such task")
        if method == "tasks/get":
            return self.shown(task)
        if method == "tasks/cancel":
            task.run.cancel()
            await asyncio.wait([task.run])
            return {} if self._stateless else self.shown(task)
        if method == "tasks/update":
            for key, answer in (call.params.get("inputResponses") or {}).items():
                if task.inputs.pop(key, None) is not None:
                    task.answers[key].set_result(answer)
            return {}
        return await asyncio.shield(task.run)
