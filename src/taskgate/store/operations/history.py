"""History: one row for each call that has ended, to be searched, and counts of all calls, for charts.

The values are in `core.history`. History is for searching; only the audit log is proof. A write that fails loses rows of history,
never a call; a row of kind `gap` then names the time from which rows are missing. The rows of tasks are written in the transaction
that ends the task. Pages and the API use `gateway.history_reading`, which limits every read to what a person may see and signs
cursors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from taskgate.core.governance.approval import Verdict
from taskgate.core.history.counts import ANY_OUTCOME, NO_LATENCY, Counted, Dimension, Period
from taskgate.core.history.keeping import to_delete
from taskgate.core.history.row import EndedCall, HistoryRow, RowKind, as_key, first_number, number_of
from taskgate.ports.store import Store
from taskgate.store.history_state import Loss
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.approval_rows import held_from
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction

ROWS_PER_PORTION: Final = 64
"""Each deleted row is deleted from the word index too."""
COUNTS_PER_PORTION: Final = 200
COUNTS_PER_WRITE: Final = 200
EVERY_NUMBER: Final = (1 << 63) - 1
MAX_APPROVERS: Final = 3
_CONTENT_PER_PORTION: Final = 100


_SEARCHED: Final = (
    "kind",
    "outcome",
    "task_id",
    "caller",
    "scope",
    "server",
    "tool",
    "client",
    "error_type",
    "rule",
    "approved_by",
)
"""Members of a row with a column of their own."""
_FIRST_OF_REST: Final = (
    "generation",
    "trace",
    "accepted_ms",
    "sent_ms",
    "ended_ms",
    "reason",
    "executed",
    "attempts",
    "approval_id",
    "asked",
    "size_in",
    "size_out",
    "digest",
    "parent",
    "count",
)
_REST: Final = (
    *_FIRST_OF_REST,
    *(name for name in EndedCall.__struct_fields__ if name not in _SEARCHED and name not in _FIRST_OF_REST),
)
"""The other members, stored as a list in this order. New ones come last: the list of an older row is shorter."""
_encode: Final = msgspec.json.Encoder().encode


def history_columns(row: HistoryRow, number: int) -> dict[str, Any]:
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
        "doc": _encode([getattr(row, name) for name in _REST]),
    }


def history_row_from(values: Sequence[Any]) -> HistoryRow:
    number, *searched, doc = values
    members = dict(zip(_SEARCHED, searched, strict=True)) | dict(zip(_REST, msgspec.json.decode(doc), strict=False))
    return msgspec.convert({**members, "number": number, "task_id": members["task_id"] or ""}, HistoryRow)


def put_row(tx: Transaction, row: HistoryRow) -> None:
    # A gap that cannot be written either stays counted as a loss.
    loss = Loss(row.accepted_ms, row.ended_ms, row.count) if row.kind is RowKind.GAP else Loss(tx.now_ms, tx.now_ms, 1)
    tx.put_history(loss, **history_columns(row, row.number or tx.state.history.next_number(row.ended_ms)))


def grow_row(tx: Transaction, row: HistoryRow) -> None:
    """Write the count and the times of a row that sums equal ones, if it is still there."""
    columns = history_columns(row, row.number)
    tx.queue("grow_history_row", number=columns["number"], doc=columns["doc"])


def approvers_of(tx: Transaction, approval_id: str) -> str:
    """The names of those who approved, separated by commas."""
    found = tx.run("find_approval", id=approval_id).fetchone()
    if found is None:
        return ""
    votes = held_from(tx.sealing, found).approval.votes
    names = dict.fromkeys(as_key(vote.approver) for vote in votes if vote.verdict is Verdict.APPROVE)
    return ", ".join(list(names)[:MAX_APPROVERS])


def add_counts(tx: Transaction, at_ms: int, counts: Sequence[Counted]) -> None:
    """Add to the counts of this time, in periods of every length. The caller holds the lock `history counts`."""
    for rows in _counts_by_period(at_ms, counts):
        tx.run("add_history_counts", rows=rows)


def _counts_by_period(at_ms: int, counts: Sequence[Counted]) -> list[str]:
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


class PutHistoryContent(Operation[None], frozen=True):
    """Keep the redacted arguments and result of a task beside its row (`history.content`). Encrypted where results are."""

    task_id: str
    content: bytes

    def run(self, tx: Transaction) -> None:
        sealed = tx.sealing.seal(self.content, self.task_id)
        tx.run("put_history_content", task_id=self.task_id, at_ms=tx.now_ms, body=sealed)


class ForgetOldHistory(Operation[bool], frozen=True):
    """Delete a portion of rows, content and counts that are too old; return whether more may remain. With `keep_ms` 0, all are too
    old."""

    is_retention: ClassVar[bool] = True

    keep_ms: int

    def run(self, tx: Transaction) -> bool:
        now, all_of_it = tx.now_ms, self.keep_ms <= 0
        before = EVERY_NUMBER if all_of_it else first_number(now - self.keep_ms)
        rows = _delete(tx, "forget_old_history", before=before, limit=ROWS_PER_PORTION)
        before_ms = EVERY_NUMBER if all_of_it else now - self.keep_ms
        content = tx.run("forget_old_history_content", before_ms=before_ms, limit=_CONTENT_PER_PORTION).rowcount
        counts = _forget_counts(tx, self.keep_ms)
        return rows == ROWS_PER_PORTION or content == _CONTENT_PER_PORTION or counts == COUNTS_PER_PORTION


class ForgetHistoryOfCallers(Operation[None], frozen=True):
    """Delete the given number of oldest rows of each caller."""

    is_retention: ClassVar[bool] = True

    lost: Mapping[str, int]

    def run(self, tx: Transaction) -> None:
        for caller, count in self.lost.items():
            _delete(tx, "forget_history_of", caller=caller, limit=count)


async def forget_history(store: Store, keep_ms: int, max_rows: int, portions: int = 1) -> bool:
    """Delete up to this many portions of rows that are too old, and then of those that are too many: the caller with the most rows
    loses its oldest first. Return whether more may remain."""
    await store.drop_old_days(keep_ms)
    for _ in range(portions):
        if not await store.do(ForgetOldHistory(keep_ms)):
            break
    else:
        return True
    maximum = portions * ROWS_PER_PORTION
    lost = to_delete(await store.ask(HistorySize()), max_rows, maximum)
    for part in _portions(lost):
        await store.do(ForgetHistoryOfCallers(part))
    return sum(lost.values()) == maximum


def _portions(lost: Mapping[str, int]) -> list[dict[str, int]]:
    """Split what callers lose into portions."""
    portions: list[dict[str, int]] = []
    room = 0
    for caller, count in lost.items():
        while count:
            if not room:
                portions.append({})
                room = ROWS_PER_PORTION
            taken = min(count, room)
            portions[-1][caller] = taken
            count, room = count - taken, room - taken
    return portions


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


class EraseHistory(Operation[int], frozen=True):
    """Delete a portion of the rows of a person; return how many."""

    principal: str

    def run(self, tx: Transaction) -> int:
        return _delete(tx, "forget_history_of", caller=as_key(self.principal), limit=ROWS_PER_PORTION)


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


class HistorySize(Query[Mapping[str, int]], frozen=True):
    """The number of rows of each caller."""

    is_search: ClassVar[bool] = True

    def run(self, reader: Reader) -> Mapping[str, int]:
        return dict(reader.run("history_size").fetchall())


class HistoryContent(Query[bytes | None], frozen=True):
    task_id: str

    def run(self, reader: Reader) -> bytes | None:
        row = reader.run("find_history_content", task_id=self.task_id).fetchone()
        return None if row is None else reader.sealing.open(bytes(row[0]), self.task_id)


class FindHistoryRow(Query[HistoryRow | None], frozen=True):
    """The row with this id: that of a task, or `HistoryRow.id` of another row."""

    row_id: str

    def run(self, reader: Reader) -> HistoryRow | None:
        number = number_of(self.row_id)
        if number is None:
            found = reader.run("history_row_of_task", task_id=self.row_id).fetchone()
        else:
            found = reader.run("history_row_numbered", number=number).fetchone()
        return None if found is None else history_row_from(found)
