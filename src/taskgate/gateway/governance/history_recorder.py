"""Write rows of history for plain calls and denials, in batches and outside the calls, and delete old rows.

The row of a task is written by the commit that ends the task. Rows added here are kept in memory for at most a second, except
equal rows that are being summed. If rows cannot be written, no call fails: a row of kind `gap` follows as soon as the store
accepts writes again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, Executed, GatewayFault
from taskgate.core.history.classify import trace_of
from taskgate.core.history.keeping import EqualRows, Sample
from taskgate.core.history.row import LONGEST_REASON, CallOutcome, HistoryRow, RowKind, as_key, cleaned
from taskgate.core.tasks.task import Task
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.history import Loss
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log

ROWS_PER_ROUND: Final = 500
"""Rows that are kept one by one until the next flush; further ones are summed like denials."""
MAX_CONTENT: Final = 16 * 1024
"""Maximum size of arguments and of a result that `history.content` keeps."""
CLOCK_SET_MS: Final = 60_000
"""If the store's clock and the monotonic clock differ by more than this since the last check, the store's clock was set."""
WAIT_AFTER_SET_S: Final = 3_600.0
"""How long nothing is deleted by age after the clock was set: it may have been a mistake."""


class HistoryRecorder:
    def __init__(self, store: Store, plan: Live[Plan], events: EventHub) -> None:
        self._store = store
        self._plan = plan
        self._rows: list[HistoryRow] = []
        self._sums = EqualRows()
        self._sample = Sample()
        self._lost: Loss | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._offset_ms: float | None = None
        self._not_before = float("-inf")
        events.subscribe(TaskChanged, self._task_changed)
        self.adjust()

    def adjust(self) -> None:
        """Apply the settings of the plan in force."""
        self._store.keep_history(on=self._plan.value.history.keep_ms > 0)

    def keeps(self, outcome: CallOutcome, took_s: float, ended: float, *, asked: bool) -> bool:
        """Return whether a plain call gets a row. `ended` is a time of the monotonic clock; `asked`: a question was asked during
        the call.
        """
        settings = self._plan.value.history
        return settings.keep_ms > 0 and self._sample.keeps(
            outcome, took_s, ended, asked=asked, per_second=settings.sample
        )

    def row_of(
        self,
        request: Request,
        tool: ToolRef,
        outcome: CallOutcome,
        executed: Executed,
        *,
        error_type: str,
        took_s: float,
        size_in: int,
        size_out: int,
    ) -> HistoryRow:
        """The row of a plain call that has just ended, without the digest of its arguments."""
        now = self._store.now_ms()
        accepted = now - int(took_s * 1000)
        return HistoryRow(
            kind=RowKind.CALL,
            outcome=outcome,
            caller=as_key(request.caller.principal),
            scope=as_key(request.caller.scope),
            server=tool.server,
            tool=cleaned(tool.name),
            client=cleaned(request.client_name),
            generation=request.generation.value,
            trace=trace_of(request.params),
            accepted_ms=accepted,
            sent_ms=accepted if request.delivery.sent else 0,
            ended_ms=now,
            error_type=cleaned(error_type),
            rule=cleaned(tool.decision.rule),
            executed=str(executed),
            attempts=1 if request.delivery.sent else 0,
            asked=request.delivery.asked,
            size_in=size_in,
            size_out=size_out,
        )

    def add(self, row: HistoryRow) -> None:
        """Keep a row until the next flush."""
        if len(self._rows) < ROWS_PER_ROUND:
            self._rows.append(row)
        elif (first := self._sums.add(row)) is not None:
            self._rows.append(first)

    def denied(self, entry: AuditEntry, request: Request | None) -> None:
        """Keep the row of a refused request; equal ones are summed. `request` is None if the refusal came before one was read."""
        self._refused(entry, request, RowKind.DENIAL, CallOutcome.DENIED)

    def not_sent(self, entry: AuditEntry, request: Request) -> None:
        """Keep the row of a call of a server that cannot be reached; equal ones are summed."""
        self._refused(entry, request, RowKind.CALL, CallOutcome.FAILED)

    def _refused(self, entry: AuditEntry, request: Request | None, kind: RowKind, outcome: CallOutcome) -> None:
        if self._plan.value.history.keep_ms <= 0:
            return
        now = self._store.now_ms()
        row = HistoryRow(
            kind=kind,
            outcome=outcome,
            caller=as_key(entry.principal),
            scope=as_key(entry.scope),
            server=cleaned(entry.server),
            tool=cleaned(entry.name),
            client=cleaned(request.client_name) if request is not None else "",
            generation=request.generation.value if request is not None else "",
            trace=trace_of(request.params) if request is not None else "",
            accepted_ms=now,
            ended_ms=now,
            error_type=cleaned(entry.decision),
            rule=cleaned(entry.rule),
            reason=cleaned(entry.reason, LONGEST_REASON),
            executed=Executed.NO.value,
            digest=entry.arguments_digest,
        )
        first = self._sums.add(row)
        if first is not None:
            self._rows.append(first)

    def flush(self, *, last: bool = False) -> None:
        """Write what was kept. Called once a second, and at shutdown."""
        self.adjust()
        now = self._store.now_ms()
        rows, self._rows = self._rows, []
        rows += self._sums.due(now, last=last)
        count = len(rows)
        lost = _joined(self._lost, self._store.take_history_loss())
        if lost is not None:
            rows.append(_gap(lost))
        if not rows:
            return
        try:
            self._store.add_history(rows)
            self._lost = None
        except GatewayFault as fault:
            # The queue of the store is full: it cannot be written to at the moment.
            log.warning("rows of history were lost", rows=count, why=fault.message)
            self._lost = _joined(lost, Loss(now, now, count) if count else None)

    def forget_person(self, principal: str) -> None:
        """Drop what is not written yet of a person whose data is erased."""
        key = as_key(principal)
        self._rows = [row for row in self._rows if row.caller != key]
        self._sums.forget(key)

    async def forget_old(self, portions: int) -> bool:
        """Delete up to this many portions of rows that are too old or too many. Return whether more remain."""
        settings = self._plan.value.history
        self._check_clock()
        keep_ms = settings.keep_ms
        if keep_ms > 0 and clock.monotonic() < self._not_before:
            keep_ms = max(keep_ms, self._store.now_ms())  # by number only
        return await self._store.forget_history(keep_ms, settings.max_rows if settings.keep_ms > 0 else 0, portions)

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
        if not settings.content or settings.keep_ms <= 0 or not task.state.is_terminal:
            return
        if task.finished_ms == task.updated_ms and task.owner == self._store.ownership.owner:
            job = asyncio.get_running_loop().create_task(self._keep_content(task))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _keep_content(self, task: Task) -> None:
        try:
            body = await self._store.result_bytes(task.id)
            content = await asyncio.to_thread(_content, self._plan.value, task, body)
            await self._store.put_history_content(task.id, content)
        except GatewayFault as fault:
            log.warning("the content of a task was not kept in history", task=task.id, why=fault.message)

    async def close(self) -> None:
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=5.0)


def _joined(first: Loss | None, second: Loss | None) -> Loss | None:
    if first is None or second is None:
        return first or second
    return first.plus(second)


def _gap(lost: Loss) -> HistoryRow:
    return HistoryRow(
        kind=RowKind.GAP,
        outcome=CallOutcome.GAP,
        accepted_ms=lost.first_ms,
        ended_ms=lost.last_ms,
        reason="rows of this time could not be written",
        count=lost.rows,
    )


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
