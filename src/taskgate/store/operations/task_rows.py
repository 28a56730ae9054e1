"""Tasks, attempts and questions as rows: the columns that are written, and the values that are read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from taskgate.core.tasks.deadlines import kept_until_ms
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, AttemptState, ProgressStep, Task
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.rows import record_from
from taskgate.store.sealing import Sealing

_encode: Final = msgspec.json.Encoder().encode
_decode_task: Final = msgspec.json.Decoder(Task).decode
_WAITING: Final = (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
CALLS_OF_SCRIPTS: Final = "script"
"""The key by which open calls of scripts are counted; no principal's key is equal to it."""
_SENT: Final = (TaskState.RUNNING, TaskState.INPUT_REQUIRED)


class _ServerText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of `doc` that comes from the server and is encrypted."""

    status_message: str | None = None
    request_state: bytes | None = None
    progress_steps: tuple[ProgressStep, ...] = ()


_decode_server_text: Final = msgspec.json.Decoder(_ServerText).decode


def _task_doc(sealing: Sealing, doc: Task) -> bytes:
    if not sealing.seals or (doc.status_message is None and doc.request_state is None and not doc.progress_steps):
        return _encode(doc)
    part = _encode(_ServerText(doc.status_message, doc.request_state, doc.progress_steps))
    readable = replace(doc, status_message=None, request_state=None, progress_steps=())
    return sealing.seal_into(_encode(readable), part, doc.id)


def task_columns(sealing: Sealing, task: Task) -> dict[str, Any]:
    """Return the columns of a task. `doc` has neither arguments and results, which have their own tables, nor owner and fence."""
    outcome = task.outcome
    doc = replace(
        task,
        arguments=b"",
        params_rest=b"",
        outcome=None if outcome is None else replace(outcome, body=None),
        owner="",
        fence=0,
    )
    return {
        "id": task.id,
        "principal": task.principal,
        # Calls of scripts are not in the lists of their callers, and do not count as their open tasks: the script does.
        "caller": "" if task.parent else task.caller,
        "limited_as": CALLS_OF_SCRIPTS if task.parent else task.limited_as or task.caller,
        "scope": task.scope,
        "server": task.server,
        "wire_name": task.wire_name,
        "state": str(task.state),
        "owner": task.owner,
        "fence": task.fence,
        "revision": task.revision,
        "needs_owner": int(not task.state.is_terminal or task.cancel_unsent),
        "finished_ms": task.finished_ms,
        "keep_until_ms": kept_until_ms(task),
        "approval_due_ms": task.approval_deadline_ms if task.state in _WAITING else None,
        "execution_due_ms": task.execution_deadline_ms if task.state in _SENT else None,
        "doc": _task_doc(sealing, doc),
    }


def task_from(sealing: Sealing, row: Sequence[Any]) -> Task:
    """Decode a row of doc, owner and fence, optionally followed by the arguments and the rest of the params."""
    doc, owner, fence, arguments, params_rest = (*row, b"", b"")[:5]
    task = _decode_task(doc)
    call, rest = sealing.open(arguments, task.id), sealing.open(params_rest, task.id)
    task = replace(task, owner=owner, fence=fence, arguments=call, params_rest=rest)
    sealed = sealing.open_in(doc, task.id)
    if sealed is None:
        return task
    text = _decode_server_text(sealed)
    return replace(
        task,
        status_message=text.status_message,
        request_state=text.request_state,
        progress_steps=text.progress_steps,
    )


def check_task(doc: bytes) -> None:
    """Raise the error of `task_from` if the document of a task cannot be read. Needs no key."""
    _decode_task(doc)


def attempt_columns(task_id: str, attempt: Attempt) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "number": attempt.number,
        "fence": attempt.fence,
        "byte_hash": attempt.byte_hash,
        "upstream": attempt.upstream,
        "sent_at_ms": attempt.sent_at_ms,
        "state": str(attempt.state),
        "ended_ms": attempt.ended_ms,
        "why": attempt.why,
    }


def attempt_from(*row: Any) -> Attempt:
    number, fence, byte_hash, upstream, sent_at_ms, state, ended_ms, why = row
    return Attempt(
        number=number,
        fence=fence,
        byte_hash=byte_hash,
        upstream=upstream,
        sent_at_ms=sent_at_ms,
        state=AttemptState(state),
        ended_ms=ended_ms,
        why=why,
    )


def question_from(sealing: Sealing, task_id: str, *row: Any) -> TaskQuestion:
    question = record_from(TaskQuestion, row)
    answer = None if question.answer is None else sealing.open(question.answer, task_id)
    return replace(question, request=sealing.open(question.request, task_id), answer=answer)


def question_columns(sealing: Sealing, task_id: str, question: TaskQuestion, now_ms: int) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "key": question.key,
        "server": question.server,
        "method": question.method,
        "request": sealing.seal(question.request, task_id),
        "asked_ms": now_ms,
        "expires_ms": question.expires_ms,
        "shown_as": question.shown_as,
    }
