"""Ports of the console: what its modules use of the gateway, by subject. Use cases of the gateway implement them.

Ports that need nothing of the gateway's own types are in `taskgate.ports`; those below have a plan, a view or a request in their
signatures. `Dashboard` passes the implementations, and an import contract keeps the modules from importing them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.rehearse import RuleBook
from taskgate.core.governance.unmatched_patterns import UnmatchedPattern
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset
from taskgate.core.scripts.stubs import Stubs
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Message
from taskgate.gateway.catalog.view import View
from taskgate.gateway.events import HubEvent
from taskgate.gateway.plan import Plan
from taskgate.gateway.questions.elicitation_page import ElicitationPage
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.replies import CallerReply
from taskgate.gateway.requests.request import Request
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.store import Store

RuleBookOf = Callable[[Plan], RuleBook]
"""The rules of a plan for rehearsing recorded calls."""
StubsOfScope = Callable[[View], Awaitable[Stubs]]
"""The stubs of all tools that scripts of a scope may call."""


class UnmatchedPatterns(Protocol):
    @property
    def found(self) -> Sequence[UnmatchedPattern]:
        """The patterns of the configuration that certainly match nothing that the servers list."""
        ...


class GrantRevocation(Protocol):
    async def revoke(self, user: Approver, grant_id: str) -> Grant | None: ...


class TemporaryScope(Protocol):
    """A scope that was created for a limited time."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def config(self) -> Mapping[str, str]: ...
    @property
    def created_by(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def expires_ms(self) -> int: ...


class IssuedScope(Protocol):
    """A new scope and its token, which is returned only once."""

    @property
    def scope(self) -> TemporaryScope: ...
    @property
    def token(self) -> str: ...


class TemporaryScopes(Protocol):
    def find(self, name: str) -> TemporaryScope | None: ...

    async def hand_over(
        self, plan: Plan, config: Mapping[str, str], lifetime_ms: int, *, label: str, by: str
    ) -> IssuedScope:
        """Create a scope. Raises TaskConfigError for an invalid map, CallerError for anything else that is not allowed."""
        ...

    async def end(self, name: str, by: str) -> bool:
        """End a scope, its token and its sessions. Return whether it existed."""
        ...


class ScopeViews(Protocol):
    """What callers of a scope see."""

    def subset(self, plan: Plan, scope: str, narrowing: SessionRequest) -> Subset: ...

    async def view(
        self, plan: Plan, caller: Caller, narrowing: SessionRequest, *, from_script: bool = False
    ) -> View: ...


class ServerLists(ListedTools, Protocol):
    """The lists of servers, and their state."""

    def report(self, server: str) -> dict[str, Any]: ...

    def changed(self, server: str) -> None:
        """List the server again."""
        ...


class ServerDraining(Protocol):
    @property
    def drained(self) -> frozenset[str]: ...

    async def drain(self, name: str, *, drained: bool) -> None:
        """Remove a server from every scope, or add it back."""
        ...


class ServerQueue(Protocol):
    """Calls that hold a slot of a server, and calls that wait for one."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class ServerQueues(Protocol):
    @property
    def queues(self) -> Mapping[str, ServerQueue]:
        """Only servers with a limit have one."""
        ...


class TaskChanges(Protocol):
    async def next_change(self, seen: Task, timeout_s: float | None) -> bool:
        """Wait until the task differs from what the caller has seen of it. Return False on timeout."""
        ...


class TaskResults(Protocol):
    @property
    def changes(self) -> TaskChanges: ...

    async def result_bytes(self, task: Task) -> bytes | None: ...


class TaskControl(Protocol):
    async def cancel_task(self, task: Task, reason: str | None) -> Task:
        """Raises CallerError for a task that has ended."""
        ...

    def start_for_result(self, task: Task) -> None:
        """Start an approved task because its caller waits for the result."""
        ...


class Tasks(Protocol):
    @property
    def store(self) -> Store: ...
    @property
    def records(self) -> TaskResults: ...
    @property
    def methods(self) -> TaskControl: ...
    @property
    def draining(self) -> bool: ...


class QuestionInbox(Protocol):
    """The open questions of all callers."""

    def all(self) -> list[Waiting]: ...

    def find_any(self, request_id: str) -> Waiting:
        """Raises CallerError for a question that is not open."""
        ...

    def answer_elicitation(self, waiting: Waiting, action: str, content: Any) -> None: ...

    def answer_sampling(
        self, waiting: Waiting, role: str, content: Any, model: str, stop_reason: str | None
    ) -> None: ...

    def refuse(self, waiting: Waiting, reason: str | None) -> None: ...


class OpenElicitationPages(Protocol):
    def find(self, page_id: str, user: str, is_operator: bool) -> ElicitationPage | None:
        """The page if it is for this user or the user is an operator."""
        ...

    def answer(self, page: ElicitationPage, value: str | None) -> None:
        """Send the answer (None: declined). Raises CallerError for a second answer."""
        ...


class Requests(Protocol):
    """Runs requests as a transport does."""

    @property
    def answer(self) -> Callable[[Request], Awaitable[CallerReply | None]]: ...

    def failure(
        self, problem: TaskgateError, message_id: bytes | None, generation: Generation, message: Message | None = None
    ) -> CallerReply: ...


class PersonForgetting(Protocol):
    async def forget(self, principal: str) -> None: ...


class CallForgetting(Protocol):
    def forget_person(self, principal: str) -> None:
        """Drop what is noted of a person's calls and not stored yet."""
        ...


class Events(Protocol):
    def publish(self, event: HubEvent) -> None: ...
