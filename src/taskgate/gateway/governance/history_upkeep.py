"""What is done with the records of calls besides writing them: delete old ones, and keep the content of tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live, Plan
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.store import Store
from taskgate.store.operations.history import PutHistoryContent, forget_history
from taskgate.store.operations.task_queries import ResultBytes
from taskgate.store.operations.usage import forget_recorded_calls
from taskgate.telemetry.logs import log

MAX_CONTENT: Final = 16 * 1024
"""Maximum size of arguments and of a result that `history.content` keeps."""
CLOCK_SET_MS: Final = 60_000
"""If the store's clock and the monotonic clock differ by more than this since the last check, the store's clock was set."""
WAIT_AFTER_SET_S: Final = 3_600.0
"""How long nothing is deleted by age after the clock was set: it may have been a mistake."""


class HistoryUpkeep:
    def __init__(self, store: Store, plan: Live[Plan], events: EventHub) -> None:
        self._store = store
        self._plan = plan
        self._jobs: set[asyncio.Task[None]] = set()
        self._offset_ms: float | None = None
        self._not_before = float("-inf")
        events.subscribe(TaskChanged, self._task_changed)

    async def forget_old(self, portions: int) -> bool:
        """Delete up to this many portions of rows of history and of recorded calls that are too old or too many. Return whether
        more remain."""
        record = self._plan.value.governing.record  # without the setting, all recorded calls are too old
        recorded = await forget_recorded_calls(self._store, record.keep_ms if record is not None else 0, portions)
        return await self._forget_history(portions) or recorded

    async def _forget_history(self, portions: int) -> bool:
        settings = self._plan.value.history
        self._check_clock()
        keep_ms = round(settings.keep * 1000)
        if keep_ms > 0 and clock.monotonic() < self._not_before:
            keep_ms = max(keep_ms, self._store.now_ms())  # by number only
        return await forget_history(self._store, keep_ms, settings.max_rows if settings.keep > 0 else 0, portions)

    def _check_clock(self) -> None:
        """Notice when the store's clock was set, forward or back."""
        offset = self._store.now_ms() - clock.monotonic() * 1000
        before, self._offset_ms = self._offset_ms, offset
        if before is not None and abs(offset - before) > CLOCK_SET_MS:
            self._not_before = clock.monotonic() + WAIT_AFTER_SET_S
            log.warning("the clock was set; history is deleted by age again in an hour", by_s=(offset - before) / 1000)

    def _task_changed(self, event: TaskChanged) -> None:
        task = event.task
        settings = self._plan.value.history
        if not settings.content or settings.keep <= 0 or not task.state.is_terminal:
            return
        if task.finished_ms == task.updated_ms and task.owner == self._store.ownership.owner:
            job = asyncio.get_running_loop().create_task(self._keep_content(task))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _keep_content(self, task: Task) -> None:
        try:
            body = await self._store.ask(ResultBytes(task.id))
            content = await asyncio.to_thread(_content, self._plan.value, task, body)
            await self._store.do(PutHistoryContent(task.id, content))
        except GatewayFault as fault:
            log.warning("the content of a task was not kept in history", task=task.id, why=fault.message)

    async def close(self) -> None:
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=5.0)


def _content(plan: Plan, task: Task, body: bytes | None) -> bytes:
    """Arguments and result as JSON, redacted by every workflow; what is too large or unreadable is left out."""
    return wire.encode({"arguments": _redacted(plan, task.arguments or b"{}"), "result": _redacted(plan, body)})


def _redacted(plan: Plan, raw: bytes | None) -> Any:
    if raw is None or len(raw) > MAX_CONTENT:
        return None
    try:
        value: Any = wire.parse_strictly(raw)
    except (CallerError, ValueError, *UNDECODABLE):
        return None
    for redaction in plan.governing.redactions.values():
        value = redaction.redact(value).value
    return value
