"""Create tasks in the store, change their state, and find them for callers that may see them.

Every state change goes through this module and is announced by `TaskChanges`. A task belongs to a principal; the task of an
anonymous caller belongs to any anonymous caller that knows its unguessable id.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, Executed, GatewayFault
from taskgate.core.generations.generation import PROGRESS_TOKEN
from taskgate.core.generations.stateless import ENVELOPE_KEYS, complete
from taskgate.core.ids import RANDOM_BYTES, is_task_id, new_task_id
from taskgate.core.meta import with_meta
from taskgate.core.tasks.deadlines import is_gone
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.poll_interval import poll_interval_ms
from taskgate.core.tasks.projections_stateless import stateless_get_result
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, RunOn, Task
from taskgate.core.tasks.transition import Cancelled, InputSettled, Noted, TransitionEvent
from taskgate.core.tool_class import ToolClass
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ProgressMade
from taskgate.gateway.plan import Live, Plan, pending_limits
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.limit_errors import limit_error
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.requests.task_access import may_see, unknown_task
from taskgate.gateway.tasks.task_changes import TaskChanges
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    Joined,
    KeyTaken,
    ResultGone,
    SameCall,
    StaleOwner,
    TaskQuestion,
    TooManyOpen,
)
from taskgate.ports.task_store import AcceptLimits
from taskgate.telemetry.logs import log

Written = TypeVar("Written")
STORE_PATIENCE_S: Final = 600.0
STORE_PAUSE_S: Final = 0.5
BACK_TRIES: Final = 10
_NOT_KEPT = frozenset({"arguments", "name", "task", "requestState", "inputResponses"})


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call about to become a task."""

    server: str
    tool: str
    wire_name: str
    params: Members
    tool_class: ToolClass
    definition_digest: str
    policy_revision: str
    budget_ms: int
    ttl_ms: int
    run_on: RunOn = RunOn.ONCE_ALLOWED
    message: str | None = None
    scope_revision: str = ""
    keep_result_ms: int = 300_000


class Acceptance(Enum):
    """What became of a call that was to become a task."""

    NEW = "new"
    REPEATED = "repeated"
    """Its idempotency key was used before: it is that task."""
    JOINED = "joined"
    """An equal call of its conversation waits for an approval: it is that task."""


class TaskRecords:
    def __init__(self, store: Store, changes: TaskChanges, plan: Live[Plan]) -> None:
        self.store = store
        self.changes = changes
        self.open_tasks = 0
        self._plan = plan

    async def accept(
        self,
        request: Request,
        call: NewCall,
        *,
        sent: AlreadySent | None = None,
        approval: ApprovalRequest | None = None,
        key: str | None = None,
        task_id: str | None = None,
        audit: AuditEntry | None = None,
        limited: bool = True,
    ) -> tuple[Task, Acceptance]:
        """Make a call durable. A call that people must agree to joins an equal one of its conversation that waits for them."""
        await read_ahead(bytes(call.params.get("arguments", Raw(b"{}"))))
        draft = self._draft(request, call, task_id or self.new_id())
        limits, joins = self._limits() if limited else AcceptLimits(), approval is not None
        accepted = await self._when_back(
            lambda: self.store.accept(
                draft, sent=sent, approval=approval, key=key, limits=limits, audit=audit, joins=joins
            )
        )
        match accepted:
            case Change(task):
                self.changes.changed(task)
                self.open_tasks += 1
                return task, Acceptance.NEW
            case SameCall(task):
                return task, Acceptance.REPEATED
            case Joined(task):
                return task, Acceptance.JOINED
            case KeyTaken():
                raise CallerError(
                    "idempotency_conflict",
                    "This idempotency key was used before with other arguments. Use a new key for a new call.",
                )
            case ResultGone(executed=executed):
                raise CallerError(
                    "result_expired",
                    "The call with this idempotency key was handled, but its result is no longer kept.",
                    executed=Executed.YES if executed is Executed.YES else executed,
                )
            case TooManyOpen() as refused:
                raise limit_error(refused, "Wait for some to end, or cancel some.")
            case StaleOwner():
                raise GatewayFault("store_unavailable", "Another process has taken over the store.")
            case _:
                raise GatewayFault("internal", "The task could not be made; please try again.")

    def _limits(self) -> AcceptLimits:
        limits = self._plan.value.limits
        return AcceptLimits(limits.open_tasks_per_caller, limits.open_tasks_per_tenant, pending_limits(limits))

    def recount(self, open_tasks: int) -> None:
        """How many tasks are open, by the store's own count."""
        self.open_tasks = open_tasks

    def new_id(self) -> str:
        return new_task_id(self.store.now_ms(), secrets.token_bytes(RANDOM_BYTES))

    def _draft(self, request: Request, call: NewCall, task_id: str) -> Task:
        rest = {key: value for key, value in call.params.items() if key not in _NOT_KEPT}
        rest = with_meta(rest, {}, drop=(PROGRESS_TOKEN, *ENVELOPE_KEYS))
        arguments = bytes(call.params.get("arguments", Raw(b"{}")))
        return Task(
            id=task_id,
            principal=request.caller.principal,
            caller=request.caller_key,
            conversation=request.conversation_key.name,
            limited_as=request.caller.limit_key,
            scope=request.caller.scope,
            facts=request.caller.facts,
            place=request.caller.place,
            server=call.server,
            tool=call.tool,
            wire_name=call.wire_name,
            arguments=arguments,
            params_rest=wire.join(rest),
            digest=arguments_digest(arguments),
            definition_digest=call.definition_digest,
            policy_revision=call.policy_revision,
            scope_revision=call.scope_revision,
            tool_class=call.tool_class,
            generation=request.generation,
            run_on=call.run_on,
            status_message=call.message,
            ttl_ms=call.ttl_ms,
            keep_result_ms=call.keep_result_ms,
            vendor_id=request.vendor_id,
            execution_budget_ms=call.budget_ms,
        )

    async def advance(self, task_id: str, event: TransitionEvent, **more: Any) -> Task | None:
        """Move a task on; None when it could not be moved (it is over, or no longer ours)."""
        ours = None if isinstance(event, Cancelled | InputSettled) else partial(self._is_ours, task_id)
        changed = await self._when_back(partial(self.store.advance, task_id, event, **more), ours)
        if isinstance(changed, Change):
            self.moved(changed.task)
            return changed.task
        return None

    async def conclude(self, task_id: str, event: TransitionEvent) -> Task | None:
        """Write an ending. What a tool answered must not be lost because the disk was full at that moment."""
        return await self.patiently(lambda: self.advance(task_id, event))

    async def _when_back(
        self, write: Callable[[], Awaitable[Written]], still_ours: Callable[[], Awaitable[bool]] | None = None
    ) -> Written:
        """A gateway that was taken for dead goes on in a moment under a new fence; until then its store takes nothing from it.

        `still_ours`: for what only the owner of a task may write. Without it: what is nobody's yet, and what people and callers
        say of any task.
        """
        answer = await write()
        for _ in range(BACK_TRIES if self.store.sessions is not None else 0):
            if not isinstance(answer, StaleOwner) or (still_ours is not None and not await still_ours()):
                break
            await clock.sleep(STORE_PAUSE_S)
            answer = await write()
        return answer

    async def _is_ours(self, task_id: str) -> bool:
        """Whether nobody has taken over a task of ours, although somebody could have."""
        task = await self.store.get(task_id)
        return task is not None and not task.state.is_terminal and task.owner == self.store.ownership.owner

    async def patiently(self, write: Callable[[], Awaitable[Written]]) -> Written:
        """A write or a look of ours that nobody waits for: a store in trouble is tried again until it recovers."""
        end = clock.monotonic() + STORE_PATIENCE_S
        while True:
            try:
                return await write()
            except GatewayFault as fault:
                if fault.error_type != "store_unavailable" or clock.monotonic() > end:
                    raise
                log.warning("store in trouble; the run of a task waits for it", why=fault.message)
            await clock.sleep(STORE_PAUSE_S)

    async def current(self, task_id: str) -> Task | None:
        """The task as it is, for a run of ours: a run that ended because it could not look would leave its task to nobody."""
        return await self.patiently(lambda: self.store.get(task_id))

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        """The questions of a task that a run of ours puts or has put."""
        return await self.patiently(lambda: self.store.questions(task_id, answered=answered))

    def note(self, task_id: str, principal: str, noted: Noted) -> None:
        """What the server reports of its work: kept with the next commit, and passed on at once to callers that follow the task."""
        self.store.note(task_id, noted)
        self.changes.noted(ProgressMade(task_id, principal, noted))

    def moved(self, task: Task) -> None:
        """Spread the news of a change that the store has made."""
        if task.state.is_terminal:
            self.open_tasks = max(0, self.open_tasks - 1)
        self.changes.changed(task)

    async def find(self, request: Request, task_id: Any) -> Task:
        """The task, if this caller may see it. Unknown, foreign and forgotten look the same."""
        if type(task_id) is not str:
            raise CallerError("invalid_params", '"taskId" must be a string.')
        task = await self.store.get(task_id) if is_task_id(task_id) else None
        if task is None or is_gone(task, self.store.now_ms()) or not may_see(request, task):
            raise unknown_task()
        return task

    def poll_ms(self, task: Task) -> int:
        calls = self._plan.value.calls
        return poll_interval_ms(task.state, self.open_tasks, calls.poll_ms, calls.approval_poll_ms)

    def has_helpers(self, request: Request) -> bool:
        """Whether this caller may call the tools that follow tasks."""
        return self._plan.value.has_helpers(request.caller.scope)

    async def result_bytes(self, task: Task) -> bytes | None:
        if task.outcome is None:
            return None
        if task.outcome.body is not None:
            return task.outcome.body
        return await self.store.result_bytes(task.id)

    async def detailed(self, task: Task) -> dict[str, Any]:
        """The task as `tasks/get` of the stateless generation shows it: with its outcome or its open questions."""
        outcome = await self.result_bytes(task) if task.state.is_terminal else None
        if outcome is not None and task.outcome is not None and task.outcome.kind is OutcomeKind.RESULT:
            outcome = await edited(outcome, complete)
        questions = {}
        if task.state is TaskState.INPUT_REQUIRED:
            questions = {asked.key: asked.request for asked in await self.store.questions(task.id)}
        return stateless_get_result(task, self.poll_ms(task), outcome=outcome, questions=questions)


def sent_params(task: Task) -> Members:
    """The params of the call as they go upstream: exactly what was judged, and what travelled with it."""
    rest = wire.members_of(task.params_rest)
    return {"name": wire.raw(task.tool), "arguments": Raw(task.arguments), **rest}
