"""The outcome of a script's call: what the script receives for a task that has ended, and how an outcome is stored."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.wire import Raw
from taskgate.ports.script_interpreter import CallOutcome, Raised, Referenced, Returned

_EXECUTED: Final = {Executed.YES: "yes", Executed.NO: "no", Executed.MAYBE: "unknown"}
_TEXT: Final = "text"
MAX_MESSAGE: Final = 2_000


class _Stored(msgspec.Struct, omit_defaults=True):
    value: bytes | None = None
    type: str = ""
    message: str = ""
    executed: str = ""
    reference: str = ""


def encode_outcome(outcome: CallOutcome) -> bytes:
    if isinstance(outcome, Returned):
        return msgspec.json.encode(_Stored(value=outcome.value))
    if isinstance(outcome, Referenced):
        return msgspec.json.encode(_Stored(reference=outcome.reference))
    return msgspec.json.encode(_Stored(None, outcome.type, outcome.message, outcome.executed))


def decode_outcome(stored: bytes) -> CallOutcome:
    read = msgspec.json.decode(stored, type=_Stored)
    if read.reference:
        return Referenced(read.reference)
    return Returned(read.value) if read.value is not None else Raised(read.type, read.message, read.executed)


def raised_by(problem: TaskgateError) -> Raised:
    """A call that was refused before it was stored."""
    return Raised(problem.error_type, problem.message[:MAX_MESSAGE], _EXECUTED[problem.executed])


def executed_value(task: Task) -> str:
    """Whether the call of a task was executed, for scripts: `yes`, `no` or `unknown`."""
    if task.executed is not None:
        return _EXECUTED[task.executed]
    return "unknown" if task.may_have_been_sent else "no"


def outcome_of(task: Task, body: bytes | None) -> CallOutcome:
    """The outcome of a call whose task has ended. `body` is the stored result or error object."""
    outcome = task.outcome
    if outcome is None or body is None:
        kind = "cancelled" if outcome is None else "result_expired"
        return Raised(kind, (task.status_message or "The call was cancelled.")[:MAX_MESSAGE], executed_value(task))
    if outcome.kind is OutcomeKind.RESULT:
        return _of_result(task, body)
    error = wire.parse_strictly(body)
    data = error.get("data") if type(error) is dict else None
    named = data.get("error_type") if type(data) is dict else None
    message = str(error.get("message", "The server returned an error."))
    return Raised(named if type(named) is str else "server_error", message[:MAX_MESSAGE], executed_value(task))


def _of_result(task: Task, body: bytes) -> CallOutcome:
    members = wire.members_of(body)
    if bytes(members.get("isError", Raw(b"false"))) == b"true":
        failure = _texts(members) or "The tool returned an error."
        return Raised("tool_error", failure[:MAX_MESSAGE], executed_value(task))
    structured = members.get("structuredContent")
    if structured is not None and bytes(structured) != b"null":
        return Returned(bytes(structured))
    text = _texts(members)
    if text is not None:
        return Returned(wire.encode(text))
    return Returned(bytes(members.get("content", Raw(b"[]"))))


def _texts(members: dict[str, Raw]) -> str | None:
    """The text of a result that has nothing else."""
    content: Any = wire.parse_strictly(bytes(members.get("content", Raw(b"[]"))))
    if type(content) is not list or not content:
        return None
    blocks = [block if type(block) is dict else {} for block in content]
    if any(block.get("type") != _TEXT or type(block.get(_TEXT)) is not str for block in blocks):
        return None
    return "\n".join(block[_TEXT] for block in blocks)
