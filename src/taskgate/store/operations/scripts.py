"""Scripts: one record per script, replaced at each step, and the calls that the script made.

A step is one transaction: the snapshot, the counters, the marks of the outcomes that were delivered, and the tasks of the new
calls. So a call exists if and only if the snapshot that waits for it does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.scripts.record import ReceivedOutcomes, ScriptRecord
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import AlreadyOver
from taskgate.ports.store_answers import Accepting, Change, StaleOwner, UnknownTask
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operation import Operation, OwnerOperation, Query
from taskgate.store.operations.task_changes import load_any_task, load_our_task, move_task
from taskgate.store.operations.task_limits import NO_LIMITS, AcceptLimits
from taskgate.store.operations.task_rows import task_from
from taskgate.store.operations.tasks import Accept, mark_received, task_locks
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction

_encode: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(ScriptRecord).decode
_PARTS_OF_CHILDREN: Final = ("forget_outcomes", "forget_attempts", "forget_questions", "forget_calls", "forget_tasks")


class ChildCall(msgspec.Struct, frozen=True):
    """A call of a script that becomes a task. `draft.parent` is the script."""

    number: int
    draft: Task
    approval: ApprovalRequest | None = None
    audit: AuditEntry | None = None
    limits: AcceptLimits = NO_LIMITS


class ScriptStep(msgspec.Struct, frozen=True):
    record: ScriptRecord
    snapshot: bytes
    """Opaque to the store. It is encrypted if `store.key` is set."""
    delivered: tuple[int, ...] = ()
    """The calls whose outcomes the script has received with this step."""


class Stepped(msgspec.Struct, frozen=True):
    """The step is durable. `accepted` has one answer for each new call, in order."""

    accepted: tuple[Accepting, ...]


Stepping = Stepped | AlreadyOver | UnknownTask | StaleOwner


class StoredScript(msgspec.Struct, frozen=True):
    record: ScriptRecord
    snapshot: bytes


class ScriptCall(msgspec.Struct, frozen=True):
    """One tool call of a script, with its task as it is now (without arguments and result)."""

    number: int
    line: int
    delivered_step: int | None
    """The step with which the script received the outcome; None until then."""
    task: Task


class StepScript(OwnerOperation[Stepping], frozen=True):
    """Store a step: write the snapshot and accept the new calls. Refused if the script has ended or has another owner; then nothing
    is changed."""

    task_id: str
    step: ScriptStep
    children: Sequence[ChildCall] = ()

    @property
    def locks(self) -> Locks:
        children = self.children
        held = [child.approval for child in children if child.approval is not None]
        limits = tuple(dict.fromkeys(approval.counted_as for approval in held))
        if any(child.limits.pending.per_tenant is not None for child in children):
            limits += tenants_of(limits)
        callers = tuple(dict.fromkeys(child.draft.caller for child in children))
        tasks = (self.task_id, *(child.draft.id for child in children))
        return Locks(tasks=tasks, callers=callers, limits=limits, reads=(self.task_id,))

    def run(self, tx: Transaction) -> Stepping:
        script = load_our_task(tx, self.task_id)
        if not isinstance(script, Task):
            return script
        if script.state.is_terminal:
            return AlreadyOver(script.state)
        accepted = tuple(
            Accept(child.draft, approval=child.approval, limits=child.limits, audit=child.audit).run(tx)
            for child in self.children
        )
        for child, answer in zip(self.children, accepted, strict=True):
            if isinstance(answer, Change):
                values = {"number": child.number, "line": child.draft.script_line, "task_id": answer.task.id}
                tx.run("put_script_call", script_id=self.task_id, **values)
        record = self.step.record
        if self.step.delivered:
            mark_received(tx, self.task_id, ReceivedOutcomes(record.step, self.step.delivered))
        tx.run(
            "put_script",
            task_id=self.task_id,
            step=record.step,
            doc=tx.sealing.seal(_encode(record), self.task_id),
            snapshot=tx.sealing.seal(self.step.snapshot, self.task_id),
        )
        return Stepped(accepted)


class JoinChain(Operation[str | None], frozen=True):
    """Make a script the newest of the chain of the scripts that it resumes (at least one, the first one first), unless another
    script, which is not one of these, is the newest. Return the newest; None if the first is no longer kept.

    The first script of a chain records which one is the newest. A script that did not follow the newest would not know its calls.
    """

    task_id: str
    earlier: Sequence[str]

    @property
    def locks(self) -> Locks:
        return task_locks(self.earlier[0])

    def run(self, tx: Transaction) -> str | None:
        first = load_any_task(tx, self.earlier[0])
        if not isinstance(first, Task):
            return None
        newest = first.newest_of_chain
        if newest and newest not in self.earlier:
            return newest
        changed = msgspec.structs.replace(first, newest_of_chain=self.task_id, revision=first.revision + 1)
        move_task(tx, first, changed, None)
        return self.task_id


class FindScript(Query[StoredScript | None], frozen=True):
    """The newest step of a script; None before the first."""

    task_id: str

    def run(self, reader: Reader) -> StoredScript | None:
        row = reader.run("find_script", task_id=self.task_id).fetchone()
        return None if row is None else script_from(reader.sealing, self.task_id, *row)


class CallsOfScript(Query[tuple[ScriptCall, ...]], frozen=True):
    """The tool calls of a script in the order in which it made them, from the one after the number `after`."""

    task_id: str
    after: int = -1
    limit: int = 1_000

    def run(self, reader: Reader) -> tuple[ScriptCall, ...]:
        found = reader.run("calls_of_script", script_id=self.task_id, number=self.after, limit=self.limit)
        return tuple(
            ScriptCall(number, line, delivered, task_from(reader.sealing, row))
            for number, line, delivered, *row in found
        )


class AskingCalls(Query[tuple[str, ...]], frozen=True):
    """The ids of those calls of a script whose servers wait for an answer, in the order in which it made them."""

    task_id: str

    def run(self, reader: Reader) -> tuple[str, ...]:
        return tuple(row[0] for row in reader.run("asking_calls", script_id=self.task_id))


def script_from(sealing: Sealing, task_id: str, doc: bytes, snapshot: bytes) -> StoredScript:
    return StoredScript(_read(sealing.open(doc, task_id)), sealing.open(snapshot, task_id))


def forget_children(tx: Transaction, scripts: Sequence[Task]) -> None:
    """Delete the calls of scripts whose results have expired, and their snapshots. A call is kept as long as its script."""
    ids = json.dumps([script.id for script in scripts])
    children = [task_id for (task_id,) in tx.run("children_of_scripts", ids=ids).fetchall()]
    if children:
        gone = json.dumps(children)
        for part in _PARTS_OF_CHILDREN:
            tx.run(part, ids=gone)
    tx.run("forget_script_calls", ids=ids)
    tx.run("forget_scripts", ids=ids)
