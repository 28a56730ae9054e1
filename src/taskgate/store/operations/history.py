"""History: encode and decode its rows, write them in the transaction that ends a task, and delete them in portions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.governance.approval import Approval, Verdict
from taskgate.core.history.classify import row_of_held, row_of_task
from taskgate.core.history.counts import ANY_OUTCOME, NO_LATENCY, Counted, Dimension, Period
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind, as_key, first_number
from taskgate.core.tasks.task import Task
from taskgate.ports.history import Loss
from taskgate.store.operations.approval_rows import held_from
from taskgate.store.transaction import Transaction

ROWS_PER_PORTION: Final = 64
"""Each deleted row is deleted from the word index too."""
COUNTS_PER_PORTION: Final = 200
COUNTS_PER_WRITE: Final = 200
EVERY_NUMBER: Final = (1 << 63) - 1
MAX_APPROVERS: Final = 3
_CONTENT_PER_PORTION: Final = 100


class _Rest(msgspec.Struct, array_like=True, frozen=True):
    """The part of a row that is not searched. New members are added only at the end: older rows are shorter."""

    generation: str = ""
    trace: str = ""
    accepted_ms: int = 0
    sent_ms: int = 0
    ended_ms: int = 0
    reason: str = ""
    executed: str = ""
    attempts: int = 0
    approval_id: str = ""
    asked: bool = False
    size_in: int = 0
    size_out: int = 0
    digest: str = ""
    parent: str = ""
    count: int = 1


_encode: Final = msgspec.json.Encoder().encode
_read_rest: Final = msgspec.json.Decoder(_Rest).decode


def history_columns(row: HistoryRow, number: int) -> dict[str, Any]:
    rest = _Rest(
        row.generation,
        row.trace,
        row.accepted_ms,
        row.sent_ms,
        row.ended_ms,
        row.reason,
        row.executed,
        row.attempts,
        row.approval_id,
        row.asked,
        row.size_in,
        row.size_out,
        row.digest,
        row.parent,
        row.count,
    )
    return {
        "number": number,
        "kind": str(row.kind),
        "outcome": str(row.outcome),
        "task_id": row.task_id or None,
        "caller": row.caller,
        "tenant": row.tenant,
        "scope": row.scope,
        "server": row.server,
        "tool": row.tool,
        "client": row.client,
        "error_type": row.error_type,
        "rule": row.rule,
        "approved_by": row.approved_by,
        "doc": _encode(rest),
    }


def history_row_from(values: Sequence[Any]) -> HistoryRow:
    number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc = values
    rest = _read_rest(doc)
    return HistoryRow(
        kind=RowKind(kind),
        outcome=CallOutcome(outcome),
        number=number,
        task_id=task_id or "",
        caller=caller,
        scope=scope,
        server=server,
        tool=tool,
        client=client,
        error_type=error_type,
        rule=rule,
        approved_by=approved_by,
        generation=rest.generation,
        trace=rest.trace,
        accepted_ms=rest.accepted_ms,
        sent_ms=rest.sent_ms,
        ended_ms=rest.ended_ms,
        reason=rest.reason,
        executed=rest.executed,
        attempts=rest.attempts,
        approval_id=rest.approval_id,
        asked=rest.asked,
        size_in=rest.size_in,
        size_out=rest.size_out,
        digest=rest.digest,
        parent=rest.parent,
        count=rest.count,
    )


def record_task_end(tx: Transaction, task: Task) -> None:
    """Write the row of a task that ends in this transaction."""
    if not tx.settings.history.on:
        return
    approvers = _approvers(tx, task.approval_id) if task.approval_id is not None else ""
    row = row_of_task(task, tx.now_ms, approved_by=approvers, with_reason=not tx.sealing.seals)
    _put(tx, row)


def record_held_end(tx: Transaction, approval: Approval) -> None:
    """Write the row of a held request without a task that will not run."""
    row = row_of_held(approval, tx.now_ms) if tx.settings.history.on else None
    if row is not None:
        _put(tx, row)


def record_rows(tx: Transaction, rows: Iterable[HistoryRow]) -> None:
    for row in rows:
        _put(tx, row)


def _put(tx: Transaction, row: HistoryRow) -> None:
    # A gap that cannot be written either stays counted as a loss.
    loss = Loss(row.accepted_ms, row.ended_ms, row.count) if row.kind is RowKind.GAP else Loss(tx.now_ms, tx.now_ms, 1)
    tx.put_history(loss, **history_columns(row, tx.settings.history.next_number(row.ended_ms)))


def _approvers(tx: Transaction, approval_id: str) -> str:
    found = tx.run("find_approval", id=approval_id).fetchone()
    if found is None:
        return ""
    votes = held_from(tx.sealing, found).approval.votes
    names = dict.fromkeys(as_key(vote.approver) for vote in votes if vote.verdict is Verdict.APPROVE)
    return ", ".join(list(names)[:MAX_APPROVERS])


def counts_by_period(at_ms: int, counts: Sequence[Counted]) -> list[str]:
    """The counts of all periods that contain this time, as values of `add_history_counts`, in one order everywhere: two gateways
    that add to the same rows must not deadlock. Outcomes and latencies are counted in rows of their own: a row for each combination
    would be several times as many, and a chart reads all of them."""
    sums: dict[tuple[str, str, str, int, str, str, int], int] = {}
    for period in Period:
        start, has_steps = at_ms // period.length_ms * period.length_ms, period.has_latencies
        for dimension, name, tenant, outcome, step, calls in counts:
            subject = (period.value, dimension.value, name, start, tenant)
            key = (*subject, outcome.value, NO_LATENCY)
            sums[key] = sums.get(key, 0) + calls
            if has_steps and step != NO_LATENCY:
                key = (*subject, ANY_OUTCOME, step)
                sums[key] = sums.get(key, 0) + calls
    rows = [(*key, sums[key]) for key in sorted(sums)]
    parts = (rows[start : start + COUNTS_PER_WRITE] for start in range(0, len(rows), COUNTS_PER_WRITE))
    return [json.dumps(part) for part in parts]


def forget_old(tx: Transaction, keep_ms: int) -> bool:
    """Delete a portion of rows, content and counts that are too old; return whether more may remain. With `keep_ms` 0, all are too
    old.
    """
    now, all_of_it = tx.now_ms, keep_ms <= 0
    before = EVERY_NUMBER if all_of_it else first_number(now - keep_ms)
    rows = _delete(tx, "forget_old_history", before=before, limit=ROWS_PER_PORTION)
    before_ms = EVERY_NUMBER if all_of_it else now - keep_ms
    content = tx.run("forget_old_history_content", before_ms=before_ms, limit=_CONTENT_PER_PORTION).rowcount
    counts = _forget_counts(tx, keep_ms)
    return rows == ROWS_PER_PORTION or content == _CONTENT_PER_PORTION or counts == COUNTS_PER_PORTION


def _forget_counts(tx: Transaction, keep_ms: int) -> int:
    left = COUNTS_PER_PORTION
    for period in Period:
        kept_ms = min(keep_ms, period.kept_ms)
        # A period is kept while a part of it is within the time.
        before_ms = EVERY_NUMBER if kept_ms <= 0 else tx.now_ms - kept_ms - period.length_ms
        for dimension in Dimension:
            values = {"period": period.value, "dimension": dimension.value, "before_ms": before_ms}
            left -= tx.run("forget_history_counts", limit=left, **values).rowcount
            if left <= 0:
                return COUNTS_PER_PORTION
    return COUNTS_PER_PORTION - left


def forget_of_callers(tx: Transaction, lost: Mapping[str, int]) -> None:
    """Delete the given number of oldest rows of each caller."""
    for caller, count in lost.items():
        _delete(tx, "forget_history_of", caller=caller, limit=count)


def erase_rows(tx: Transaction, principal: str) -> int:
    """Delete a portion of the rows of a person; return how many."""
    return _delete(tx, "forget_history_of", caller=as_key(principal), limit=ROWS_PER_PORTION)


def erase_names(tx: Transaction, principal: str) -> None:
    """Delete the counts under a person's name, and the name where they approved calls of others."""
    tx.run("erase_history_counts", caller=as_key(principal))
    tx.run("erase_approver", caller=as_key(principal))


def _delete(tx: Transaction, statement: str, **values: Any) -> int:
    deleted = tx.run(statement, **values).fetchall()
    tasks = [task_id for (task_id,) in deleted if task_id is not None]
    if tasks:
        tx.run("forget_history_content", ids=json.dumps(tasks))
    return len(deleted)
