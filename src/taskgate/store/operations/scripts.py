"""Operations on scripts, each inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from taskgate.core.scripts.record import ReceivedOutcomes, ScriptRecord
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import AlreadyOver
from taskgate.ports.script_store import ChildCall, ScriptStep, Stepped, Stepping, StoredScript
from taskgate.ports.store_answers import Change
from taskgate.store.operations import tasks
from taskgate.store.operations.task_changes import load_any_task, load_our_task, move_task
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction

_encode: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(ScriptRecord).decode
_PARTS_OF_CHILDREN: Final = ("forget_outcomes", "forget_attempts", "forget_questions", "forget_calls", "forget_tasks")


def step(tx: Transaction, task_id: str, stored: ScriptStep, children: Sequence[ChildCall]) -> Stepping:
    """Write the snapshot and accept the new calls. Only the owner of an open script may."""
    script = load_our_task(tx, task_id)
    if not isinstance(script, Task):
        return script
    if script.state.is_terminal:
        return AlreadyOver(script.state)
    accepted = tuple(
        tasks.accept(
            tx,
            child.draft,
            sent=None,
            approval=child.approval,
            key=None,
            limits=child.limits,
            audit=child.audit,
        )
        for child in children
    )
    for child, answer in zip(children, accepted, strict=True):
        if isinstance(answer, Change):
            tx.run(
                "put_script_call",
                script_id=task_id,
                number=child.number,
                line=child.draft.script_line,
                task_id=answer.task.id,
            )
    if stored.delivered:
        tasks.mark_received(tx, task_id, ReceivedOutcomes(stored.record.step, stored.delivered))
    record, snapshot = _encode(stored.record), stored.snapshot
    tx.run(
        "put_script",
        task_id=task_id,
        step=stored.record.step,
        doc=tx.sealing.seal(record, task_id),
        snapshot=tx.sealing.seal(snapshot, task_id),
    )
    return Stepped(accepted)


def join_chain(tx: Transaction, task_id: str, earlier: Sequence[str]) -> str | None:
    """Record in the first script of a chain which one is the newest. A script that did not follow the newest would not know its
    calls.
    """
    first = load_any_task(tx, earlier[0])
    if not isinstance(first, Task):
        return None
    newest = first.newest_of_chain
    if newest and newest not in earlier:
        return newest
    move_task(tx, first, msgspec.structs.replace(first, newest_of_chain=task_id, revision=first.revision + 1), None)
    return task_id


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
