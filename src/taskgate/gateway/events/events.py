"""The events of the gateway. Each says what has happened; none asks for anything."""

from __future__ import annotations

from dataclasses import dataclass

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted
from taskgate.core.wire import Raw
from taskgate.gateway.events.hub import Event
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import Session
from taskgate.ports.approval_store import ApprovalRequest


@dataclass(frozen=True, slots=True)
class TaskChanged(Event):
    """The store has moved a task on."""

    task: Task


@dataclass(frozen=True, slots=True)
class TaskExpired(Event):
    """The result of a task that ended is no longer kept."""

    task: Task


@dataclass(frozen=True, slots=True)
class ProgressMade(Event):
    """A server reported progress of the call that a task runs."""

    task_id: str
    noted: Noted


@dataclass(frozen=True, slots=True)
class TaskLogged(Event):
    """A server sent a log message while it ran a task."""

    task_id: str
    params: Raw


@dataclass(frozen=True, slots=True)
class ResultAwaited(Event):
    """A `tasks/result` request began to wait for a task; its stream can carry the task's questions."""

    task_id: str
    request: Request


@dataclass(frozen=True, slots=True)
class TaskStreamOpened(Event):
    """There is a stream on which a task's questions can be asked, and it is known to whoever pushes them."""

    task_id: str


@dataclass(frozen=True, slots=True)
class ConversationIdle(Event):
    """The last task that used the upstream conversations of a session has ended."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ElicitationCompleted(Event):
    """A server says that an address which it had a person open has done its work."""

    server: str
    params: Raw | None
    request: Request | None = None
    """The open request on whose stream the server said so."""


@dataclass(frozen=True, slots=True)
class ApprovalOpened(Event):
    """A call waits for people: as a task, or, without one, as the request that is held."""

    task: Task | None
    approval: ApprovalRequest
    request: Request


@dataclass(frozen=True, slots=True)
class ApprovalOver(Event):
    """An approval is decided, expired or no longer needed."""

    approval_id: str


@dataclass(frozen=True, slots=True)
class DefinitionChanged(Event):
    """A server lists a tool with another definition than the pinned one."""

    server: str
    tool: str
    digest: str


@dataclass(frozen=True, slots=True)
class ListsChanged(Event):
    """A server's lists are different from what they were."""

    server: str
    kinds: frozenset[EntryKind]


@dataclass(frozen=True, slots=True)
class SessionEnded(Event):
    """A caller's session is over: deleted, idle for too long, or ended with the gateway."""

    session: Session


@dataclass(frozen=True, slots=True)
class TemporaryScopesChanged(Event):
    """A scope was handed over at run time, or one of these has ended. All other scopes are what they were."""

    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class ScopesChanged(Event):
    """A new plan is in force that may show callers other lists than the one before."""
