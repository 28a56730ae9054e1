"""Values that operations of the store take and return: durable changes, and the reasons why nothing was changed.

A reason is a value and not an exception, because each of them is an ordinary result that the caller must handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from taskgate.core.errors import Executed
from taskgate.core.governance.approval import Approval
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Refusal


class Ownership(msgspec.Struct, frozen=True):
    """The owner and fence under which a gateway writes."""

    owner: str
    fence: int


class StaleOwner(msgspec.Struct, frozen=True):
    """Another gateway is the owner now; nothing was changed."""

    ours: Ownership


class UnknownTask(msgspec.Struct, frozen=True):
    """There is no such task, or it is no longer retained."""

    task_id: str


class StoredEvent(msgspec.Struct, frozen=True):
    """One event. `number` orders it among the caller's events, `id` is the ULID that callers see."""

    number: int
    id: str
    caller: str
    kind: str
    server: str
    at_ms: int
    data: Mapping[str, Any]


class Change(msgspec.Struct, frozen=True):
    """A durable change: the new value of the task, and its event (None if the state did not change)."""

    task: Task
    event: StoredEvent | None = None


class SameCall(msgspec.Struct, frozen=True):
    """The idempotency key was used before with the same arguments, or a sent call was stored by an earlier attempt with the same
    id: this is that task."""

    task: Task


class Joined(msgspec.Struct, frozen=True):
    """An equal call of the same conversation waits for an approval: this is its task."""

    task: Task


class KeyTaken(msgspec.Struct, frozen=True):
    """The idempotency key was used before with other arguments, or for another tool."""

    task_id: str


class ResultGone(msgspec.Struct, frozen=True):
    """The call with this idempotency key was handled, but its result has expired. It must not run again."""

    task_id: str
    executed: Executed


class LimitHolder(StrEnum):
    """The group of callers whose tasks or approvals a limit counts together."""

    CALLER = "caller"
    CONVERSATION = "conversation"
    """One conversation of a caller without an identity."""
    ADDRESS = "address"
    """All callers without an identity at one address."""
    ANONYMOUS = "anonymous"
    """All callers without an identity."""
    TENANT = "tenant"


class TooManyOpen(msgspec.Struct, frozen=True):
    """The limit of open tasks or pending approvals is reached."""

    what: str
    limit: int
    setting: str
    """The setting that the limit comes from."""
    holder: LimitHolder = LimitHolder.CALLER
    """The group whose tasks or approvals are counted."""


class IdTaken(msgspec.Struct, frozen=True):
    """A task with this id exists already."""

    task_id: str


class Intended(msgspec.Struct, frozen=True):
    """The intent is durable: send now."""

    task: Task
    event: StoredEvent | None = None


class StoppedByRecheck(msgspec.Struct, frozen=True):
    """The recheck refused; its event was applied to the task. Nothing may be sent."""

    task: Task
    event: StoredEvent | None = None


class ApprovalSpent(msgspec.Struct, frozen=True):
    """The task's approval is not valid (any more); nothing was changed. Nothing may be sent."""

    approval: Approval


class Outdated(msgspec.Struct, frozen=True):
    """Another gateway changed records that the recheck reads from a cache; nothing was written. Reload them and retry."""

    topics: tuple[str, ...]


Accepting = Change | SameCall | Joined | KeyTaken | ResultGone | TooManyOpen | IdTaken | StaleOwner
Advancing = Change | Refusal | UnknownTask | StaleOwner
Intending = Intended | StoppedByRecheck | Outdated | ApprovalSpent | Refusal | UnknownTask | StaleOwner


class TaskQuestion(msgspec.Struct, frozen=True):
    """A question that a task waits for. `request` is the raw request (method and params) that the caller gets."""

    key: str
    server: str
    method: str
    request: bytes
    expires_ms: int | None = None
    asked_ms: int = 0
    answer: bytes | None = None
    shown_as: str | None = None
    """The id that the caller got before there was a task."""
    answered_ms: int | None = None
    """None if it is open, or was answered before the store recorded this."""


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks without their arguments, newest first. `after` is the position of the next page, None at the end."""

    tasks: tuple[Task, ...]
    after: str | None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A search for tasks; None matches any. `tool` matches a part of the name. Each part of `text` between spaces, up to four of
    them, must be in the id or in the name of the caller, scope, server or tool, ignoring ASCII case; a text without parts matches
    nothing. Times are those of creation."""

    principal: str | None = None
    tenant: str | None = None
    server: str | None = None
    scope: str | None = None
    tool: str | None = None
    text: str | None = None
    states: frozenset[TaskState] | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class Due(msgspec.Struct, frozen=True):
    """Ids of tasks, and of approvals without a task, whose deadline has passed and has not been handled."""

    approvals: tuple[str, ...]
    executions: tuple[str, ...]
    holds: tuple[str, ...]


class Recovered(msgspec.Struct, frozen=True):
    """Tasks that were taken over: those that were ended, with their new values, and the others."""

    ended: tuple[Task, ...] = ()
    left: tuple[Task, ...] = ()
    last: str = ""
    """The last id that was read; empty if there was none."""


class Voided(msgspec.Struct, frozen=True):
    """How many records were ended because the store was restored from a backup."""

    grants: int
    approvals: int
    logins: int


class SweepResult(msgspec.Struct, frozen=True):
    """How many rows were deleted because they are no longer retained."""

    tasks: int = 0
    expired: tuple[Task, ...] = ()
    """Tasks whose results were deleted now, without their arguments."""
    events: int = 0
    keys: int = 0
    approvals: int = 0
    more: bool = False
    """Whether there may be more to delete."""
