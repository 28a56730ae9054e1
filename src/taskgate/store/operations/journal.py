"""What is written when calls end: their rows of history, audit entries, recorded calls and sums, in one transaction.

For a task it is the transaction that ends it, whose audit entry `task_changes` writes; for plain calls and refusals it is that of
the round in which they ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.approval import Approval
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.history.classify import row_of_held, row_of_task
from taskgate.core.history.counts import NO_LATENCY
from taskgate.core.history.row import HistoryRow
from taskgate.core.history.sums import CallSums, sums_of_answer, sums_of_task
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.store.operation import Operation
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.history import approvers_of, grow_row, put_row
from taskgate.store.operations.sums import put_sums
from taskgate.store.operations.usage import record_call
from taskgate.store.transaction import Transaction


class RecordRound(Operation[None], frozen=True, kw_only=True):
    """Write what follows from the calls and refusals of one round; the store assigns times, and numbers where there is none."""

    calls: Sequence[HistoryRow] = ()
    """Rows whose reason may be the text of a server: it is left out where such texts are encrypted at rest."""
    rows: Sequence[HistoryRow] = ()
    grown: Sequence[HistoryRow] = ()
    """Rows of earlier rounds that sum equal refusals, and have grown."""
    entries: Sequence[AuditEntry] = ()
    recorded: Sequence[RecordedCall] = ()
    sums: Sequence[CallSums] = ()
    unrecorded: int = 0
    """Calls that could have been recorded for rehearsals and were not."""

    @property
    def size(self) -> int:
        """The number of its rows, without those of sums."""
        return len(self.calls) + len(self.rows) + len(self.grown) + len(self.entries) + len(self.recorded)

    def without(self, principal: str, key: str) -> RecordRound:
        """The same without the data of a person, whose rows of history have this key. Audit entries are proof and stay."""
        return replace(
            self,
            calls=[row for row in self.calls if row.caller != key],
            rows=[row for row in self.rows if row.caller != key],
            grown=[row for row in self.grown if row.caller != key],
            recorded=[call for call in self.recorded if call.principal != principal],
            sums=[sums for sums in self.sums if sums.principal != principal],
        )

    def run(self, tx: Transaction) -> None:
        for row in self.calls:
            put_row(tx, replace(row, reason="") if row.reason and tx.sealing.seals else row)
        for row in self.rows:
            put_row(tx, row)
        for row in self.grown:
            grow_row(tx, row)
        for entry in self.entries:
            RecordAudit(entry).run(tx)
        for call in self.recorded:
            record_call(tx, call)
        if self.sums or self.unrecorded:
            put_sums(tx, self.sums, self.unrecorded)


def record_task(tx: Transaction, before: Task | None, task: Task) -> None:
    """Write the row of history and the sums of a task that ends in this transaction, and the time that a question waited."""
    sums: list[CallSums] = []
    if before is not None and before.state is TaskState.INPUT_REQUIRED and task.state is not TaskState.INPUT_REQUIRED:
        asked_ms = tx.run("first_asked", task_id=task.id, keys=json.dumps(before.question_keys)).fetchone()[0]
        sums.append(sums_of_answer(task, before.updated_ms if asked_ms is None else asked_ms))
    if task.state.is_terminal and (before is None or not before.state.is_terminal):
        sums.append(sums_of_task(task))
        if tx.state.history.on:
            approvers = approvers_of(tx, task.approval_id) if task.approval_id is not None else ""
            put_row(tx, row_of_task(task, tx.now_ms, approved_by=approvers, with_reason=not tx.sealing.seals))
    if sums:
        put_sums(tx, sums)


def record_held_end(tx: Transaction, approval: Approval) -> None:
    """Write the row and the sums of a held request without a task that will not run."""
    row = row_of_held(approval, tx.now_ms)
    if row is None:
        return
    bound = approval.binding
    put_sums(tx, [CallSums(bound.principal, bound.server, bound.tool, ended=((row.outcome, NO_LATENCY, 1),))])
    if tx.state.history.on:
        put_row(tx, row)
