"""Count usage per caller, server and tool, and write it to the store every ten seconds.

A plain call adds to one row that it finds by identity (`call_log`); tasks are counted when they end, model calls when they are
paid. The rows of one interval are bounded: usage beyond the bound is counted under `(others)`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from taskgate.core.identity.caller import Caller
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Outcome
from taskgate.core.usage import OTHERS, UsageRow, day_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.ports.store import Store
from taskgate.telemetry.metrics import Metrics

FLUSH_EVERY: Final = 10
MAX_OPEN: Final = 5_000
CALLS, ERRORS, SECONDS, BYTES_IN, BYTES_OUT, COST = range(6)


class Used(NamedTuple):
    """Usage of one tool by one caller since the last flush. The references keep the `id()` of both from being reused."""

    principal: str
    server: str
    name: str
    amounts: list[float]
    """In the order of `CALLS` to `COST`."""
    caller: Caller | None = None
    tool: ToolRef | None = None


class UsageCounter:
    def __init__(self, store: Store, metrics: Metrics, events: EventHub) -> None:
        self._store = store
        self._metrics = metrics
        self.open: dict[tuple[int, int], Used] = {}
        """Plain calls, by the identity of caller and tool."""
        self._named: dict[tuple[str, str, str], Used] = {}
        self._rounds = 0
        events.subscribe(TaskChanged, self._task_changed)

    def begin(self, caller: Caller, tool: ToolRef) -> Used:
        """Add a row for the first plain call of this caller and tool since the last flush."""
        if len(self.open) + len(self._named) >= MAX_OPEN:
            return self._row(OTHERS, OTHERS, OTHERS)
        used = self.open[id(caller), id(tool)] = Used(caller.principal, tool.server, tool.name, [0.0] * 6, caller, tool)
        return used

    def spent(self, principal: str, server: str, model: str, cost: float) -> None:
        """Count the cost of a model call for this principal."""
        amounts = self._row(principal, server, f"model {model}").amounts
        amounts[CALLS] += 1
        amounts[COST] += cost

    def _row(self, principal: str, server: str, name: str) -> Used:
        key = (principal, server, name)
        found = self._named.get(key)
        if found is None:
            if len(self.open) + len(self._named) >= MAX_OPEN:
                key = (OTHERS, OTHERS, OTHERS)
            found = self._named.get(key) or Used(*key, [0.0] * 6)
            self._named[key] = found
        return found

    def _task_changed(self, event: TaskChanged) -> None:
        """Count a task of this gateway that was sent and has ended."""
        task = event.task
        attempt = task.last_attempt
        if attempt is None or task.finished_ms is None or task.finished_ms != task.updated_ms or not task.times_sent:
            return
        if task.state is TaskState.EXPIRED or task.owner != self._store.ownership.owner:
            return
        amounts = self._row(task.principal, task.server, task.tool).amounts
        amounts[CALLS] += 1
        amounts[ERRORS] += task.state is not TaskState.COMPLETED or (task.outcome is not None and task.outcome.is_error)
        # The store's clock may have been set meanwhile, so the duration is clamped to the call's budget.
        took_ms = min(max(0, task.finished_ms - attempt.sent_at_ms), task.execution_budget_ms)
        amounts[SECONDS] += took_ms / 1000
        amounts[BYTES_IN] += len(task.arguments) + len(task.params_rest)
        amounts[BYTES_OUT] += _size(task.outcome)

    def flush(self, *, last: bool = False) -> None:
        """Write the rows when they are due. Called once a second, and at shutdown."""
        self._rounds += 1
        if not last and self._rounds < FLUSH_EVERY:
            return
        self._rounds = 0
        found = [*self.open.values(), *self._named.values()]
        self.open.clear()
        self._named.clear()
        if found:
            self._store.add_usage(self._added_up(found))

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


def _size(outcome: Outcome | None) -> int:
    return outcome.size or len(outcome.body or b"") if outcome is not None else 0
