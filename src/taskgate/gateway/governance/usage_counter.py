"""Count usage per caller, server and tool, and write it to the store every ten seconds.

A plain call adds to one row that it finds by identity (`call_log`); tasks are counted when they end, model calls when they are
paid. The rows of one interval are bounded: usage beyond the bound is counted under `(others)`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from taskgate.core.errors import GatewayFault
from taskgate.core.history.classify import outcome_of_task
from taskgate.core.history.counts import NO_LATENCY, Counted, Dimension, counted, step_of
from taskgate.core.history.row import CallOutcome, as_key
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import tenant_of
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Outcome, Task
from taskgate.core.usage import OTHERS, UsageRow, day_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

FLUSH_EVERY: Final = 10
MAX_OPEN: Final = 5_000
MAX_ASKING: Final = 10_000
_OTHER_CALLS: Final = (0, 0)
"""The key of plain calls beyond the bound; no object has this identity."""
_DENIED: Final = (CallOutcome.DENIED, NO_LATENCY)
CALLS, ERRORS, SECONDS, BYTES_IN, BYTES_OUT, COST = range(6)


class Used(NamedTuple):
    """Usage of one tool by one caller since the last flush. The references keep the `id()` of both from being reused."""

    principal: str
    server: str
    name: str
    amounts: list[float]
    """In the order of `CALLS` to `COST`."""
    ended: dict[tuple[CallOutcome, int], int]
    """Calls by outcome and step of latency, for the counts of history."""
    waited: dict[tuple[Dimension, CallOutcome, int], int]
    """Tasks by outcome and by how long they waited for approval, and their questions by how long they waited for an answer."""
    caller: Caller | None = None
    tool: ToolRef | None = None


class UsageCounter:
    def __init__(self, store: Store, metrics: Metrics, events: EventHub, plan: Live[Plan]) -> None:
        self._plan = plan
        self._store = store
        self._metrics = metrics
        self.open: dict[tuple[int, int], Used] = {}
        """Plain calls, by the identity of caller and tool. How many there are is added up from `ended` when they are written."""
        self._named: dict[tuple[str, str, str], Used] = {}
        self._rounds = 0
        self._asking: dict[str, int] = {}
        """Tasks that wait for an answer, and since when."""
        events.subscribe(TaskChanged, self._task_changed)

    def begin(self, caller: Caller, tool: ToolRef) -> Used:
        """Add a row for the first plain call of this caller and tool since the last flush."""
        if len(self.open) + len(self._named) >= MAX_OPEN:
            return self.open.setdefault(_OTHER_CALLS, Used(OTHERS, OTHERS, OTHERS, [0.0] * 6, {}, {}))
        used = self.open[id(caller), id(tool)] = Used(
            caller.principal, tool.server, tool.name, [0.0] * 6, {}, {}, caller, tool
        )
        return used

    def spent(self, principal: str, server: str, model: str, cost: float) -> None:
        """Count the cost of a model call for this principal."""
        amounts = self._row(principal, server, f"model {model}").amounts
        amounts[CALLS] += 1
        amounts[COST] += cost

    def denied(self, principal: str, server: str, tool: str) -> None:
        """Count a request that was refused. Names that may be invented by the caller are left empty."""
        ended = self._row(principal, server, tool).ended
        ended[_DENIED] = ended.get(_DENIED, 0) + 1

    def forget_person(self, principal: str) -> None:
        """Drop what is not written yet of a person whose data is erased."""
        self.open = {key: used for key, used in self.open.items() if used.principal != principal}
        self._named = {key: used for key, used in self._named.items() if used.principal != principal}

    def _row(self, principal: str, server: str, name: str) -> Used:
        key = (principal, server, name)
        found = self._named.get(key)
        if found is None:
            if len(self.open) + len(self._named) >= MAX_OPEN:
                key = (OTHERS, OTHERS, OTHERS)
            found = self._named.get(key) or Used(*key, [0.0] * 6, {}, {})
            self._named[key] = found
        return found

    def _task_changed(self, event: TaskChanged) -> None:
        """Count a task of this gateway that has ended: its outcome, and its usage if it was sent."""
        task = event.task
        self._note_question(task)
        if task.finished_ms is None or task.finished_ms != task.updated_ms:
            return
        if task.owner != self._store.ownership.owner:
            return
        outcome, attempt = outcome_of_task(task), task.last_attempt
        used = self._row(task.principal, task.server, task.tool)
        if outcome is not None:
            step = step_of(task.finished_ms - task.created_ms) if task.times_sent else NO_LATENCY
            used.ended[outcome, step] = used.ended.get((outcome, step), 0) + 1
            if task.approval_id is not None:
                until = attempt.sent_at_ms if attempt is not None and task.times_sent else task.finished_ms
                _add_wait(used, Dimension.WAITING, outcome, until - task.created_ms)
        if attempt is None or not task.times_sent or task.state is TaskState.EXPIRED:
            return
        amounts = used.amounts
        amounts[CALLS] += 1
        amounts[ERRORS] += task.state is not TaskState.COMPLETED or (task.outcome is not None and task.outcome.is_error)
        # The store's clock may have been set meanwhile, so the duration is clamped to the call's budget.
        took_ms = min(max(0, task.finished_ms - attempt.sent_at_ms), task.execution_budget_ms)
        amounts[SECONDS] += took_ms / 1000
        amounts[BYTES_IN] += len(task.arguments) + len(task.params_rest)
        amounts[BYTES_OUT] += _size(task.outcome)

    def _note_question(self, task: Task) -> None:
        """Count how long a task waits for the answer to its question. A wait that began before a restart is not counted."""
        if task.owner != self._store.ownership.owner:
            return
        if task.state is TaskState.INPUT_REQUIRED:
            if len(self._asking) < MAX_ASKING:
                self._asking.setdefault(task.id, task.updated_ms)
            return
        since = self._asking.pop(task.id, None)
        if since is not None:
            outcome = outcome_of_task(task) or CallOutcome.OK
            used = self._row(task.principal, task.server, task.tool)
            _add_wait(used, Dimension.ANSWERING, outcome, task.updated_ms - since)

    def flush(self, *, last: bool = False) -> None:
        """Write the rows when they are due. Called once a second, and at shutdown."""
        self._rounds += 1
        if not last and self._rounds < FLUSH_EVERY:
            return
        self._rounds = 0
        for used in self.open.values():
            used.amounts[CALLS] = sum(used.ended.values())
            used.amounts[ERRORS] = sum(
                calls for (outcome, _), calls in used.ended.items() if outcome is not CallOutcome.OK
            )
        found = [*self.open.values(), *self._named.values()]
        self.open.clear()
        self._named.clear()
        if not found:
            return
        for used in found:
            for (outcome, _), calls in used.ended.items():
                self._metrics.calls_ended.add(used.server, outcome.value, by=calls)
        if rows := self._added_up([used for used in found if any(used.amounts)]):
            self._store.add_usage(rows)
        if counts := self._counts(found):
            self._add_counts(counts)

    def _add_counts(self, counts: list[Counted]) -> None:
        try:
            self._store.add_counts(self._store.now_ms(), counts)
        except GatewayFault as fault:
            log.warning("counts of calls were lost", why=fault.message)

    def _counts(self, found: list[Used]) -> list[Counted]:
        """The counts of history, one for each dimension, name, outcome and step."""
        if self._plan.value.history.keep_ms <= 0:
            return []
        sums: dict[tuple[Dimension, str, str, CallOutcome, int], int] = {}
        for used in found:
            caller = as_key(used.principal)
            tenant = tenant_of(caller)
            for (outcome, step), calls in used.ended.items():
                made = counted(caller, tenant, used.server, used.name, outcome=outcome, step=step, calls=calls)
                for *key, count in made:
                    kind: Any = tuple(key)
                    sums[kind] = sums.get(kind, 0) + count
            for (dimension, outcome, step), calls in used.waited.items():
                kind = (dimension, "", tenant, outcome, step)
                sums[kind] = sums.get(kind, 0) + calls
        return [Counted(*key, calls) for key, calls in sums.items()]

    def _added_up(self, found: list[Used]) -> list[UsageRow]:
        day, rows = day_of(self._store.now_ms()), dict[tuple[str, str, str], UsageRow]()
        for used in found:
            self._count(used)
            calls, errors, seconds, bytes_in, bytes_out, cost = used.amounts
            numbers = (int(calls), int(errors), seconds, int(bytes_in), int(bytes_out), cost)
            row = UsageRow(day, used.principal, used.server, used.name, *numbers)
            key = (row.principal, row.server, row.tool)
            rows[key] = rows[key].plus(row) if key in rows else row
        return list(rows.values())

    def _count(self, used: Used) -> None:
        amounts, metrics = used.amounts, self._metrics
        metrics.usage_calls.add(used.server, by=amounts[CALLS])
        metrics.usage_errors.add(used.server, by=amounts[ERRORS])
        metrics.usage_seconds.add(used.server, by=amounts[SECONDS])
        metrics.usage_bytes.add(used.server, "in", by=amounts[BYTES_IN])
        metrics.usage_bytes.add(used.server, "out", by=amounts[BYTES_OUT])
        metrics.usage_cost.add(used.server, by=amounts[COST])


def _add_wait(used: Used, dimension: Dimension, outcome: CallOutcome, waited_ms: int) -> None:
    key = (dimension, outcome, step_of(waited_ms))
    used.waited[key] = used.waited.get(key, 0) + 1


def _size(outcome: Outcome | None) -> int:
    return outcome.size or len(outcome.body or b"") if outcome is not None else 0
