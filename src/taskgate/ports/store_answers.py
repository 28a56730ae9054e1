"""What a store answers: durable changes, and the reasons why there is none. Values shared by the store's protocols.

A reason is a value and not an exception, because each of them is an everyday answer that the caller must handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from taskgate.core.errors import Executed
from taskgate.core.governance.approval import Approval
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Refusal

# Events that must outlive the process: what happened to a caller's tasks, in order, each with its own id.
#
# A caller with an identity has a stream of events for each of its conversations (`core.conversation_key`); here
# `caller` is the name of such a stream. Within one events are numbered without gaps, in the order in which they were
# committed. So a reader that remembers one number misses nothing and sees nothing twice, and can tell exactly how many
# events it came too late for. How many of them are kept per caller, and how long, is set by `keep_events`. Events of
# sessions that need not survive are not the store's business.

KEPT_EVENTS: Final = 1_000
KEPT_EVENTS_MS: Final = 30 * 60_000


class StoredEvent(msgspec.Struct, frozen=True):
    """One event. `number` orders it among the caller's events, `id` is the ULID that callers see."""

    number: int
    id: str
    caller: str
    kind: str
    server: str
    at_ms: int
    data: Mapping[str, Any]


class EventPage(msgspec.Struct, frozen=True):
    """Events after a position. `lost` counts those that were forgotten before this reader came."""

    events: tuple[StoredEvent, ...]
    lost: int
    last: int


class EventOutbox(Protocol):
    """Durable events by caller."""

    def keep_events(self, most: int, for_ms: int) -> None:
        """How many events of each caller are kept, and how long, from now on."""
        ...

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        """An event that is not a change of a task (those are appended by the change itself)."""
        ...

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        """At most `limit` of them; without it, all that are kept."""
        ...

    async def streams_of(self, caller: str) -> tuple[str, ...]:
        """The names of all streams of a caller's conversations that are remembered."""
        ...

    async def cursor(self, caller: str) -> int:
        """Up to which number events have been handed to this caller; 0 if none."""
        ...

    def move_cursor(self, caller: str, number: int) -> None:
        """Remember a hand-over. Never moves back; reaches the disk with the next commit."""
        ...


class Ownership(msgspec.Struct, frozen=True):
    """In whose name writes are made."""

    owner: str
    fence: int


class StaleOwner(msgspec.Struct, frozen=True):
    """Somebody else owns this now; nothing was changed."""

    ours: Ownership


class UnknownTask(msgspec.Struct, frozen=True):
    """There is no such task, or it is no longer kept."""

    task_id: str


class Change(msgspec.Struct, frozen=True):
    """A durable change: the task as it now is, and the event that tells about it (None if the state stayed)."""

    task: Task
    event: StoredEvent | None = None


class SameCall(msgspec.Struct, frozen=True):
    """The idempotency key was used before with the same arguments: this is that task."""

    task: Task


class Joined(msgspec.Struct, frozen=True):
    """An equal call of the same conversation waits for an approval: this is its task."""

    task: Task


class KeyTaken(msgspec.Struct, frozen=True):
    """The idempotency key was used before with other arguments, or for another tool."""

    task_id: str


class ResultGone(msgspec.Struct, frozen=True):
    """The call with this idempotency key was handled, but its result is no longer kept. It must not run again."""

    task_id: str
    executed: Executed


class LimitHolder(StrEnum):
    """Whose tasks or approvals a limit counts together."""

    CALLER = "caller"
    CONVERSATION = "conversation"
    """One conversation of a caller without an identity."""
    ADDRESS = "address"
    """All callers without an identity at one address."""
    ANONYMOUS = "anonymous"
    """All callers without an identity."""
    TENANT = "tenant"


class TooManyOpen(msgspec.Struct, frozen=True):
    """There are as many open tasks, or pending approvals, as there may be."""

    what: str
    limit: int
    setting: str
    """The setting that the limit comes from."""
    holder: LimitHolder = LimitHolder.CALLER
    """Whose tasks or approvals are counted."""


class IdTaken(msgspec.Struct, frozen=True):
    """A task with this id exists already."""

    task_id: str


class Intended(msgspec.Struct, frozen=True):
    """The intent is durable: send now."""

    task: Task
    event: StoredEvent | None = None


class StoppedByRecheck(msgspec.Struct, frozen=True):
    """The recheck said no; the task was moved as it asked. Send nothing."""

    task: Task
    event: StoredEvent | None = None


class ApprovalSpent(msgspec.Struct, frozen=True):
    """The task's approval is not (or no longer) good for a run; nothing was changed. Send nothing."""

    approval: Approval


class Outdated(msgspec.Struct, frozen=True):
    """Another gateway changed what the recheck looks at and we have not read it yet; nothing was written. Try again soon."""

    topics: tuple[str, ...]


Accepting = Change | SameCall | Joined | KeyTaken | ResultGone | TooManyOpen | IdTaken | StaleOwner
Advancing = Change | Refusal | UnknownTask | StaleOwner
Intending = Intended | StoppedByRecheck | Outdated | ApprovalSpent | Refusal | UnknownTask | StaleOwner


class TaskQuestion(msgspec.Struct, frozen=True):
    """A question that a task waits for. `request` is the raw request (method and params), as a caller will be shown."""

    key: str
    server: str
    method: str
    request: bytes
    expires_ms: int | None = None
    asked_ms: int = 0
    answer: bytes | None = None
    shown_as: str | None = None
    """The id under which its caller saw it before there was a task."""


class TaskPage(msgspec.Struct, frozen=True):
    """Newest first. The tasks of a page carry no arguments. `after` is where the next page starts, None at the end."""

    tasks: tuple[Task, ...]
    after: str | None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks somebody looks for; None is any. `tool` is a part of its name, `text` a part of anything in its record but
    arguments and result, where A to Z are the same as a to z. Times are of creation."""

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
    """Whose clock ran out: ids of tasks, and of approvals that have no task. Somebody must now move them."""

    approvals: tuple[str, ...]
    executions: tuple[str, ...]
    holds: tuple[str, ...]


class Recovered(msgspec.Struct, frozen=True):
    """Tasks that were taken over: those that were ended at once, as they are now, and those that need something else."""

    ended: tuple[Task, ...] = ()
    left: tuple[Task, ...] = ()
    last: str = ""
    """The last id that was looked at; empty if there was none."""


class Voided(msgspec.Struct, frozen=True):
    """How much ended because the store was restored from a backup."""

    grants: int
    approvals: int
    logins: int


class Swept(msgspec.Struct, frozen=True):
    """How much was forgotten because nobody may ask for it any more."""

    tasks: int = 0
    expired: tuple[Task, ...] = ()
    """Tasks whose results are gone since now, without their arguments."""
    events: int = 0
    keys: int = 0
    approvals: int = 0
    more: bool = False
    """A portion was full: ask again soon."""
