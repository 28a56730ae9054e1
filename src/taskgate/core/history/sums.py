"""Sums of ended calls, of which usage by day and the counts of history are made.

The transaction that records the end of calls stores their sums; a later one adds the stored sums to usage and counts
(`store.operations.sums`).
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from taskgate.core.history.classify import outcome_of_task
from taskgate.core.history.counts import NO_LATENCY, Dimension, step_of
from taskgate.core.history.row import CallOutcome
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task


class CallSums(msgspec.Struct, array_like=True, frozen=True):
    """Sums of calls of one tool by one principal. Stored: new members are added only at the end."""

    principal: str
    server: str
    tool: str
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    cost: float = 0.0
    ended: tuple[tuple[CallOutcome, int, int], ...] = ()
    """Outcome, step of latency, and the number of calls."""
    waited: tuple[tuple[Dimension, CallOutcome, int, int], ...] = ()
    """What was waited for, and how long: of tasks that waited for approval, and of their questions."""


class Tally:
    """Adds up sums. The references keep the `id()` of caller and tool, by which a plain call finds its tally, from being reused."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "calls",
        "cost",
        "ended",
        "errors",
        "principal",
        "references",
        "seconds",
        "server",
        "tool",
        "waited",
    )

    def __init__(self, principal: str, server: str, tool: str, references: tuple[object, ...] = ()) -> None:
        self.principal, self.server, self.tool = principal, server, tool
        self.references = references
        self.calls = self.errors = self.bytes_in = self.bytes_out = 0
        self.seconds = self.cost = 0.0
        self.ended: dict[tuple[CallOutcome, int], int] = {}
        self.waited: dict[tuple[Dimension, CallOutcome, int], int] = {}

    def add(self, sums: CallSums) -> None:
        self.calls += sums.calls
        self.errors += sums.errors
        self.seconds += sums.seconds
        self.bytes_in += sums.bytes_in
        self.bytes_out += sums.bytes_out
        self.cost += sums.cost
        for outcome, step, calls in sums.ended:
            self.ended[outcome, step] = self.ended.get((outcome, step), 0) + calls
        for dimension, outcome, step, calls in sums.waited:
            key = (dimension, outcome, step)
            self.waited[key] = self.waited.get(key, 0) + calls

    def count(self, outcome: CallOutcome, step: int) -> None:
        """Count a call of which nothing was sent."""
        self.ended[outcome, step] = self.ended.get((outcome, step), 0) + 1

    def count_sent(self, outcome: CallOutcome, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count a plain call. How many there are is added up from their ends."""
        key = (outcome, step_of(seconds * 1000))
        self.ended[key] = self.ended.get(key, 0) + 1
        self.seconds += seconds
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def add_plain(self, calls: Tally) -> None:
        """Add plain calls, whose number is that of their ends."""
        for (outcome, step), number in calls.ended.items():
            self.calls += number
            if outcome is not CallOutcome.OK:
                self.errors += number
            self.ended[outcome, step] = self.ended.get((outcome, step), 0) + number
        self.seconds += calls.seconds
        self.bytes_in += calls.bytes_in
        self.bytes_out += calls.bytes_out

    @property
    def sums(self) -> CallSums:
        return CallSums(
            principal=self.principal,
            server=self.server,
            tool=self.tool,
            calls=self.calls,
            errors=self.errors,
            seconds=self.seconds,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            cost=self.cost,
            ended=tuple((outcome, step, calls) for (outcome, step), calls in self.ended.items()),
            waited=tuple((*kind, calls) for kind, calls in self.waited.items()),
        )


def sums_of_task(task: Task) -> CallSums:
    """The sums of a task that has ended: its outcome, how long it waited for approval, and its usage if it was sent."""
    outcome, ended_ms = outcome_of_task(task), task.finished_ms or task.updated_ms
    assert outcome is not None
    made = CallSums(task.principal, task.server, task.tool, ended=((outcome, NO_LATENCY, 1),))
    attempt = task.last_attempt if task.times_sent else None
    if task.times_sent:
        made = replace(made, ended=((outcome, step_of(ended_ms - task.created_ms), 1),))
    if task.approval_id is not None:
        until_ms = attempt.sent_at_ms if attempt is not None else ended_ms
        made = replace(made, waited=((Dimension.WAITING, outcome, step_of(until_ms - task.created_ms), 1),))
    if attempt is None or task.state is TaskState.EXPIRED:
        return made
    result = task.outcome
    # The store's clock may have been set meanwhile, so the duration is clamped to the call's budget.
    took_ms = min(max(0, ended_ms - attempt.sent_at_ms), task.execution_budget_ms)
    return replace(
        made,
        calls=1,
        errors=int(task.state is not TaskState.COMPLETED or (result is not None and result.is_error)),
        seconds=took_ms / 1000,
        bytes_in=len(task.arguments) + len(task.params_rest),
        bytes_out=0 if result is None else result.size or len(result.body or b""),
    )


def sums_of_answer(task: Task, asked_ms: int) -> CallSums:
    """The sum of a question of this task that was asked at this time, after its answer or the end of the task."""
    waited = (Dimension.ANSWERING, outcome_of_task(task) or CallOutcome.OK, step_of(task.updated_ms - asked_ms), 1)
    return CallSums(task.principal, task.server, task.tool, waited=(waited,))
