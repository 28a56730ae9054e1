"""The event hub, and the events of the gateway. Each event states what has happened.

Publishers do not depend on subscribers, which subscribe where they are created. Handlers run synchronously, in order of
subscription; one that fails is logged and does not affect the others. What may prevent or change something is no event but a
required collaborator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.telemetry.logs import log


class HubEvent(msgspec.Struct, frozen=True):
    """Base of all events: a frozen value."""


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


class TaskChanged(HubEvent, frozen=True):
    """The state of a stored task changed."""

    task: Task


class ScriptDue(HubEvent, frozen=True):
    """A script may run: it was accepted or approved, or its gateway was restarted."""

    task: Task


class ScriptCancelled(HubEvent, frozen=True):
    """A script of this gateway was cancelled. Its calls have not been cancelled yet."""

    task: Task


class TaskExpired(HubEvent, frozen=True):
    """The result of an ended task was deleted."""

    task: Task


class ProgressMade(HubEvent, frozen=True):
    """A server reported progress of the call that a task runs."""

    task_id: str
    principal: str
    noted: Noted


class TaskLogged(HubEvent, frozen=True):
    """A server sent a log message while it ran a task."""

    task_id: str
    params: Raw


class ResultAwaited(HubEvent, frozen=True):
    """A `tasks/result` request began to wait for a task; its stream can carry the task's questions."""

    task_id: str
    request: Request


class TaskStreamOpened(HubEvent, frozen=True):
    """A stream was opened and registered that can carry a task's questions."""

    task_id: str


class ConversationIdle(HubEvent, frozen=True):
    """The last task that used the upstream conversations of a session has ended."""

    session_id: str


class ElicitationCompleted(HubEvent, frozen=True):
    """A server reported that a URL elicitation is complete."""

    server: str
    params: Raw | None
    request: Request | None = None
    """The open request on whose stream the server reported it."""


class ApprovalOpened(HubEvent, frozen=True):
    """A call waits for approval: as a task, or, without one, as a held request."""

    task: Task | None
    approval: ApprovalRequest
    request: Request


class ApprovalOver(HubEvent, frozen=True):
    """An approval was decided, has expired or is no longer needed. The principal is empty if another gateway changed it."""

    approval_id: str
    principal: str


class QuestionsChanged(HubEvent, frozen=True):
    """A question was added to a caller's inbox, or removed."""

    caller: str


class DefinitionChanged(HubEvent, frozen=True):
    """A tool's definition, or the content of its interface, differs from its pin."""

    server: str
    tool: str
    digest: str


class ListsChanged(HubEvent, frozen=True):
    """A server's lists changed."""

    server: str
    kinds: frozenset[EntryKind]


class ListsFetched(HubEvent, frozen=True):
    """All lists of a server were fetched, whether or not they changed."""

    server: str
    changed: bool


class SessionEnded(HubEvent, frozen=True):
    """A caller's session ended: deleted, idle for too long, or at shutdown."""

    session: Session


class ServerSessionEnded(HubEvent, frozen=True):
    """A session with a server ended, after a failure if there is an error type."""

    server: str
    version: str
    seconds: float
    error_type: str


class DataErased(HubEvent, frozen=True):
    """An admin erased a principal's data."""

    principal: str


class TemporaryScopesChanged(HubEvent, frozen=True):
    """A temporary scope was created or has ended. All other scopes are unchanged."""

    gone: frozenset[str]


class CredentialsChanged(HubEvent, frozen=True):
    """Credentials were revoked, roles of known people changed, or a console session ended, here or at another gateway."""


class PlanReplaced(HubEvent, frozen=True):
    """Another plan is in force."""


class ScopesChanged(HubEvent, frozen=True):
    """A new plan is in force, under which callers may see other lists."""
