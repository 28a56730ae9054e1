"""The events of the gateway. Each says what has happened; none asks for anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.telemetry.logs import log

# The events of the gateway. Each says what has happened; none asks for anything.
#
# One hub for telling facts inside the process: publishers do not know who listens, and listeners subscribe when they
# are made.
#
# Handlers run at once, in the order of subscription. A handler that fails is logged and keeps nobody else from hearing.
# What may stop or change something is no event: it is a required argument of whoever must ask it.


class HubEvent:
    """Base of everything that can be published: a frozen value that says what has happened."""

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
            except Exception as fault:  # one subscriber: the publisher and the other subscribers go on
                log.error("an event was not handled", kind=type(event).__name__, handler=repr(handler), exc_info=fault)


@dataclass(frozen=True, slots=True)
class TaskChanged(HubEvent):
    """The store has moved a task on."""

    task: Task


@dataclass(frozen=True, slots=True)
class TaskExpired(HubEvent):
    """The result of a task that ended is no longer kept."""

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
    """There is a stream on which a task's questions can be asked, and it is known to whoever pushes them."""

    task_id: str


@dataclass(frozen=True, slots=True)
class ConversationIdle(HubEvent):
    """The last task that used the upstream conversations of a session has ended."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ElicitationCompleted(HubEvent):
    """A server says that an address which it had a person open has done its work."""

    server: str
    params: Raw | None
    request: Request | None = None
    """The open request on whose stream the server said so."""


@dataclass(frozen=True, slots=True)
class ApprovalOpened(HubEvent):
    """A call waits for people: as a task, or, without one, as the request that is held."""

    task: Task | None
    approval: ApprovalRequest
    request: Request


@dataclass(frozen=True, slots=True)
class ApprovalOver(HubEvent):
    """An approval is decided, expired or no longer needed. The principal is empty where another gateway moved it."""

    approval_id: str
    principal: str


@dataclass(frozen=True, slots=True)
class QuestionsChanged(HubEvent):
    """A question was put into a caller's inbox, or has left it."""

    caller: str


@dataclass(frozen=True, slots=True)
class DefinitionChanged(HubEvent):
    """A server lists a tool with another definition than the pinned one, or the content of its interface is another."""

    server: str
    tool: str
    digest: str


@dataclass(frozen=True, slots=True)
class ListsChanged(HubEvent):
    """A server's lists are different from what they were."""

    server: str
    kinds: frozenset[EntryKind]


@dataclass(frozen=True, slots=True)
class ListsFetched(HubEvent):
    """A server has returned all its lists, whether or not they are what they were."""

    server: str
    changed: bool


@dataclass(frozen=True, slots=True)
class SessionEnded(HubEvent):
    """A caller's session is over: deleted, idle for too long, or ended with the gateway."""

    session: Session


@dataclass(frozen=True, slots=True)
class DataErased(HubEvent):
    """An admin erased what is kept about a principal."""

    principal: str


@dataclass(frozen=True, slots=True)
class TemporaryScopesChanged(HubEvent):
    """A scope was handed over at run time, or one of these has ended. All other scopes are what they were."""

    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class CredentialsChanged(HubEvent):
    """Credentials were revoked, roles of known people changed, or a console session ended, here or at another gateway."""


@dataclass(frozen=True, slots=True)
class ScopesChanged(HubEvent):
    """A new plan is in force that may show callers other lists than the one before."""
