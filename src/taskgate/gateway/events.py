"""The event hub, and the events of the gateway. Each event states what has happened.

Publishers do not depend on subscribers, which subscribe in their constructors. Handlers run synchronously, in order of
subscription; one that fails is logged and does not affect the others. What may prevent or change something is no event but a
required collaborator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.telemetry.logs import log


class HubEvent:
    """Base of all events: a frozen value."""

    __slots__ = ()


E = TypeVar("E", bound=HubEvent)


class EventHub:
    def __init__(self) -> None:
        self._handlers: dict[type[HubEvent], tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, kind: type[E], handler: Callable[[E], None]) -> None:
        self._handlers[kind] = (*self._handlers.get(kind, ()), handler)

    def publish(self, event: HubEvent) -> None:
        for handler in self._handlers.get(type(event), ()):
            try:
                handler(event)
            except Exception as fault:  # one subscriber: the publisher and the other subscribers continue
                log.error("an event was not handled", kind=type(event).__name__, handler=repr(handler), exc_info=fault)


@dataclass(frozen=True, slots=True)
class TaskChanged(HubEvent):
    """The state of a stored task changed."""

    task: Task


@dataclass(frozen=True, slots=True)
class ScriptDue(HubEvent):
    """A script may run: it was accepted or approved, or its gateway was restarted."""

    task: Task


@dataclass(frozen=True, slots=True)
class ScriptCancelled(HubEvent):
    """A script of this gateway was cancelled. Its calls have not been cancelled yet."""

    task: Task


@dataclass(frozen=True, slots=True)
class TaskExpired(HubEvent):
    """The result of an ended task was deleted."""

    task: Task


@dataclass(frozen=True, slots=True)
class ProgressMade(HubEvent):
    """A server reported progress of the call that a task runs."""

    task_id: str
    principal: str
    noted: Noted


@dataclass(frozen=True, slots=True)
class TaskLogged(HubEvent):
    """A server sent a log message while it ran a task."""

    task_id: str
    params: Raw


@dataclass(frozen=True, slots=True)
class ResultAwaited(HubEvent):
    """A `tasks/result` request began to wait for a task; its stream can carry the task's questions."""

    task_id: str
    request: Request


@dataclass(frozen=True, slots=True)
class TaskStreamOpened(HubEvent):
    """A stream was opened and registered that can carry a task's questions."""

    task_id: str


@dataclass(frozen=True, slots=True)
class ConversationIdle(HubEvent):
    """The last task that used the upstream conversations of a session has ended."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ElicitationCompleted(HubEvent):
    """A server reported that a URL elicitation is complete."""

    server: str
    params: Raw | None
    request: Request | None = None
    """The open request on whose stream the server reported it."""


@dataclass(frozen=True, slots=True)
class ApprovalOpened(HubEvent):
    """A call waits for approval: as a task, or, without one, as a held request."""

    task: Task | None
    approval: ApprovalRequest
    request: Request


@dataclass(frozen=True, slots=True)
class ApprovalOver(HubEvent):
    """An approval was decided, has expired or is no longer needed. The principal is empty if another gateway changed it."""

    approval_id: str
    principal: str


@dataclass(frozen=True, slots=True)
class QuestionsChanged(HubEvent):
    """A question was added to a caller's inbox, or removed."""

    caller: str


@dataclass(frozen=True, slots=True)
class DefinitionChanged(HubEvent):
    """A tool's definition, or the content of its interface, differs from its pin."""

    server: str
    tool: str
    digest: str


@dataclass(frozen=True, slots=True)
class ListsChanged(HubEvent):
    """A server's lists changed."""

    server: str
    kinds: frozenset[EntryKind]


@dataclass(frozen=True, slots=True)
class ListsFetched(HubEvent):
    """All lists of a server were fetched, whether or not they changed."""

    server: str
    changed: bool


@dataclass(frozen=True, slots=True)
class SessionEnded(HubEvent):
    """A caller's session ended: deleted, idle for too long, or at shutdown."""

    session: Session


@dataclass(frozen=True, slots=True)
class ServerSessionEnded(HubEvent):
    """A session with a server ended, after a failure if there is an error type."""

    server: str
    version: str
    seconds: float
    error_type: str


@dataclass(frozen=True, slots=True)
class DataErased(HubEvent):
    """An admin erased a principal's data."""

    principal: str


@dataclass(frozen=True, slots=True)
class TemporaryScopesChanged(HubEvent):
    """A temporary scope was created or has ended. All other scopes are unchanged."""

    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class CredentialsChanged(HubEvent):
    """Credentials were revoked, roles of known people changed, or a console session ended, here or at another gateway."""


@dataclass(frozen=True, slots=True)
class PlanReplaced(HubEvent):
    """Another plan is in force."""


@dataclass(frozen=True, slots=True)
class ScopesChanged(HubEvent):
    """A new plan is in force, under which callers may see other lists."""
