"""The data that a store holds about one person: list it, and erase it in steps that are each one short transaction.

Everything stored under their name is deleted, except rows of the audit chain: those contain names and digests, never arguments or
results, and deleting one would break the chain. The last step appends the row that proves the erasure.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.conversation import streams_between
from taskgate.ports.store import Store
from taskgate.ports.topics import GRANTS, QUESTIONS, TOKENS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations import history
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.identity_records import identity_locks
from taskgate.store.operations.sums import SUM_LOCKS, AddUpSums
from taskgate.store.reader import Reader
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

TASKS_PER_STEP: Final = 200
CALLS_PER_STEP: Final = 5_000
_DELETE_TASKS: Final = (
    "forget_outcomes",
    "forget_attempts",
    "forget_questions",
    "forget_script_calls",
    "forget_scripts",
    "forget_calls",
    "forget_tasks",
)


class Erased(msgspec.Struct, frozen=True):
    """How many rows of one person were erased."""

    tasks: int = 0
    approvals: int = 0
    grants: int = 0
    events: int = 0
    recorded_calls: int = 0
    history: int = 0
    usage: int = 0
    identity_records: int = 0
    open_questions: int = 0
    """Questions of servers to this person and their answers; only where gateways share a store."""
    sessions: int = 0
    """Sessions without a live home; only where gateways share a store."""


class Unfinished(msgspec.Struct, frozen=True):
    """Nothing was erased, because these tasks or held calls have not ended. At most 100 are listed."""

    ids: tuple[str, ...]


class TasksOf(Query[tuple[str, ...]], frozen=True):
    """The ids of a person's tasks, oldest first, including those whose results have expired."""

    principal: str
    after: str = ""
    limit: int = 50

    def run(self, reader: Reader) -> tuple[str, ...]:
        values = {"principal": self.principal, "after": self.after, "finished_only": False}
        return tuple(row[0] for row in reader.run("tasks_of_principal", limit=self.limit, **values))


async def erase(store: Store, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
    """Delete everything except the audit chain and identity records of the kind `kept_records`, then append the entry.

    Returns when the bytes are gone from the store's files, as far as the store controls them.
    """
    if open_ids := await store.do(UnfinishedOf(principal)):
        return Unfinished(open_ids)
    tasks = calls = rows = 0
    while True:
        gone = await store.do(EraseTasks(principal))
        tasks += gone.number
        if gone.number < TASKS_PER_STEP:
            break
    after: int | None = 0
    while after is not None:
        count, after = await store.do(EraseRecordedCalls(principal, after))
        calls += count
    while True:
        count = await store.do(history.EraseHistory(principal))
        rows += count
        if count < history.ROWS_PER_PORTION:
            break
    so_far = Erased(tasks=tasks, recorded_calls=calls, history=rows)
    return await store.do(EraseOtherData(principal, so_far, kept_records, entry))


class UnfinishedOf(Operation[tuple[str, ...]], frozen=True):
    """Return the ids of a person's unfinished tasks and of their held calls that wait for a decision."""

    principal: str

    @property
    def locks(self) -> Locks:
        return identity_locks(self.principal)

    def run(self, tx: Transaction) -> tuple[str, ...]:
        return tuple(row[0] for row in tx.run("unfinished_of_principal", principal=self.principal).fetchall())


class ErasedTasks(NamedTuple):
    number: int
    large_results: list[str]


class EraseTasks(Operation[ErasedTasks], frozen=True):
    """Delete some of a person's finished tasks."""

    principal: str

    @property
    def locks(self) -> Locks:
        return Locks(callers=(self.principal,))

    def run(self, tx: Transaction) -> ErasedTasks:
        values = {"principal": self.principal, "after": "", "finished_only": True}
        found = tx.run("tasks_of_principal", limit=TASKS_PER_STEP, **values).fetchall()
        if found:
            gone = json.dumps([task_id for task_id, _ in found])
            for statement in _DELETE_TASKS:
                tx.run(statement, ids=gone)
        return ErasedTasks(len(found), [spill for _, spill in found if spill is not None])

    def discarded(self, answer: ErasedTasks) -> list[str]:
        return answer.large_results


class EraseRecordedCalls(Operation[tuple[int, int | None]], frozen=True):
    """Delete a person's calls among the next recorded ones; return how many, and where the next step continues."""

    principal: str
    after: int

    def run(self, tx: Transaction) -> tuple[int, int | None]:
        last: int = tx.run("last_recorded_call").fetchone()[0]
        up_to = min(self.after + CALLS_PER_STEP, last)
        values = {"principal": self.principal, "after": self.after, "up_to": up_to}
        count = tx.run("erase_recorded_calls", **values).rowcount
        return count, up_to if up_to < last else None


class EraseOtherData(Operation[Erased], frozen=True):
    """Delete everything else under a person's name, and append the audit row with the counts."""

    overwrites: ClassVar[bool] = True

    principal: str
    so_far: Erased
    kept_records: str
    entry: AuditEntry

    @property
    def locks(self) -> Locks:
        locks = identity_locks(self.principal)
        return locks._replace(names=(*locks.names, *SUM_LOCKS.names))

    def run(self, tx: Transaction) -> Erased:
        principal = self.principal
        while AddUpSums().run(tx):  # so that none of this person's are added later
            pass
        first, beyond = streams_between(principal)
        approvals = [approval_id for (approval_id,) in tx.run("erase_approvals", principal=principal).fetchall()]
        tx.run("forget_receipts", ids=json.dumps(approvals))
        erased = replace(
            self.so_far,
            approvals=len(approvals),
            grants=tx.run("erase_grants", principal=principal).rowcount,
            events=tx.run("erase_events", principal=principal, first=first, beyond=beyond).rowcount,
            usage=tx.run("erase_usage", principal=principal).rowcount,
            identity_records=tx.run("erase_identity_records", principal=principal, kept=self.kept_records).rowcount,
        )
        if tx.is_shared:
            streams = {"principal": principal, "first": first, "beyond": beyond}
            erased = replace(
                erased,
                open_questions=tx.run("erase_open_questions", **streams).rowcount,
                sessions=tx.run("erase_sessions", principal=principal).rowcount,
            )
            tx.announce(QUESTIONS, principal)
        tx.run("erase_keys", principal=principal)
        history.erase_names(tx, principal)
        tx.run("erase_accepter", principal=principal)
        tx.run("erase_earlier_accepter", principal=principal)
        if erased.grants:
            tx.announce(GRANTS, principal)
        if erased.identity_records:
            tx.announce(TOKENS, principal)
        counts = ", ".join(f"{name} {getattr(erased, name)}" for name in erased.__struct_fields__)
        RecordAudit(replace(self.entry, reason=f"{self.entry.reason}: {counts}")).run(tx)
        return erased

    def remember(self, answer: Erased, state: StoreState) -> None:
        state.know_grants(tuple(grant for grant in state.known_grants if grant.principal != self.principal))
