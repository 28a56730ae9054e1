"""Create tasks in the store, change their state, and find them for callers that may see them.

Every state change goes through this module and is announced by `TaskChanges`. A task belongs to a principal; the task of an
anonymous caller belongs to any anonymous caller that presents its unguessable id.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, Executed, GatewayFault
from taskgate.core.generations.generation import PROGRESS_TOKEN
from taskgate.core.generations.stateless import ENVELOPE_KEYS, mark_complete
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.history.row import as_key
from taskgate.core.ids import RANDOM_BYTES, is_task_id, new_task_id
from taskgate.core.meta import with_meta
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.poll_interval import poll_interval_ms
from taskgate.core.tasks.projections_stateless import stateless_get_result
from taskgate.core.tasks.task import OutcomeKind, RunOn, Task
from taskgate.core.tasks.transition import Cancelled, InputSettled, Noted, TransitionEvent
from taskgate.core.tool_class import ToolClass
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ProgressMade
from taskgate.gateway.limits import pending_limits
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.limit_errors import limit_error
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.requests.task_access import ended_task, may_see, unknown_task
from taskgate.gateway.tasks.open_questions import open_questions, shown_key
from taskgate.gateway.tasks.task_changes import TaskChanges
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
from taskgate.store.operations.history import FindHistoryRow
from taskgate.store.operations.scripts import ChildCall, ScriptStep, Stepped, Stepping, StepScript
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import FindTask, QuestionsOf, ResultBytes
from taskgate.store.operations.tasks import Accept, Advance, NoteProgress
from taskgate.telemetry.logs import log

Written = TypeVar("Written")
STORE_RETRY_S: Final = 600.0
STORE_PAUSE_S: Final = 0.5
SHORT_FAULT_S: Final = 60.0
"""If the store is unavailable for longer, it is tried less often."""
LONG_PAUSE_S: Final = 5.0
WARN_EVERY_S: Final = 60.0
FENCE_TRIES: Final = 10
_NOT_STORED = frozenset({"arguments", "name", "task", "requestState", "inputResponses"})


class NewCall(msgspec.Struct, frozen=True):
    """A call that is about to be stored as a task."""

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
    script: bool = False
    """Whether the gateway runs it as a script."""


class Acceptance(Enum):
    """What became of a call that was to be stored as a task."""

    NEW = "new"
    REPEATED = "repeated"
    """Its idempotency key was used before: the task of that call."""
    JOINED = "joined"
    """An equal call of its conversation waits for an approval: the task of that call."""


class TaskRecords:
    def __init__(self, store: Store, changes: TaskChanges, plan: Live[Plan]) -> None:
        self.store = store
        self.changes = changes
        self.open_tasks = 0
        self._plan = plan
        self._warned_at = float("-inf")

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
        """Store a call as a task. A call that needs an approval joins an equal call of its conversation that waits for one."""
        await read_ahead(bytes(call.params.get("arguments", Raw(b"{}"))))
        draft = self.draft(request, call, task_id or self.new_id())
        limits, joins = self._limits() if limited else AcceptLimits(), approval is not None
        accepted = await self._retry_while_fenced(
            lambda: self.store.do(
                Accept(draft, sent=sent, approval=approval, key=key, limits=limits, audit=audit, joins=joins)
            )
        )
        match accepted:
            case Change(task):
                self._opened(task)
                return task, Acceptance.NEW
            case SameCall(task) if sent is not None:
                # An earlier attempt was committed although it had reported that the store did not answer in time.
                self._opened(task)
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
                raise GatewayFault("internal", "The task could not be created; try again.")

    async def step_script(self, task_id: str, step: ScriptStep, children: Sequence[ChildCall]) -> Stepping:
        """Store a step of a script with the calls that it makes, and retry while the store is unavailable."""
        ours = partial(self._is_ours, task_id)
        write = partial(self.store.do, StepScript(task_id, step, children))
        stepped = await self.retry_while_unavailable(lambda: self._retry_while_fenced(write, ours))
        for answer in stepped.accepted if isinstance(stepped, Stepped) else ():
            if isinstance(answer, Change):
                self._opened(answer.task)
        return stepped

    def _opened(self, task: Task) -> None:
        self.changes.changed(task)
        self.open_tasks += 1

    def pending_limits(self) -> AcceptLimits:
        """The limits on approvals only: calls of a script do not count as open tasks of its caller."""
        return AcceptLimits(pending=pending_limits(self._plan.value.limits))

    def _limits(self) -> AcceptLimits:
        limits = self._plan.value.limits
        return AcceptLimits(limits.open_tasks_per_caller, limits.open_tasks_per_tenant, pending_limits(limits))

    def set_open_tasks(self, open_tasks: int) -> None:
        """Set the number of open tasks to the store's own count."""
        self.open_tasks = open_tasks

    def new_id(self) -> str:
        return new_task_id(self.store.now_ms(), secrets.token_bytes(RANDOM_BYTES))

    def draft(self, request: Request, call: NewCall, task_id: str) -> Task:
        rest = {key: value for key, value in call.params.items() if key not in _NOT_STORED}
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
            client=request.client_name,
            rerun_of=request.rerun_of,
            run_on=call.run_on,
            status_message=call.message,
            ttl_ms=call.ttl_ms,
            keep_result_ms=call.keep_result_ms,
            vendor_id=request.vendor_id,
            execution_budget_ms=call.budget_ms,
            script=call.script,
        )

    async def advance(self, task_id: str, event: TransitionEvent, **more: Any) -> Task | None:
        """Apply an event to a task. Return None if it could not be applied: the task has ended or has another owner."""
        ours = None if isinstance(event, Cancelled | InputSettled) else partial(self._is_ours, task_id)
        changed = await self._retry_while_fenced(partial(self.store.do, Advance(task_id, event, **more)), ours)
        if isinstance(changed, Change):
            self.announce(changed.task)
            return changed.task
        return None

    async def conclude(self, task_id: str, event: TransitionEvent, **more: Any) -> Task | None:
        """Apply an event, and retry while the store is unavailable: a tool's result must not be lost to a full disk."""
        return await self.retry_while_unavailable(lambda: self.advance(task_id, event, **more))

    async def _retry_while_fenced(
        self, write: Callable[[], Awaitable[Written]], still_ours: Callable[[], Awaitable[bool]] | None = None
    ) -> Written:
        """Repeat a write while the store refuses it because this gateway was declared dead. It gets a new fence soon.

        `still_ours`: for writes that only the owner of a task may make. Omit it for new tasks, and for events of approvers and
        callers.
        """
        answer = await write()
        for _ in range(FENCE_TRIES if self.store.shared is not None else 0):
            if not isinstance(answer, StaleOwner) or (still_ours is not None and not await still_ours()):
                break
            await clock.sleep(STORE_PAUSE_S)
            answer = await write()
        return answer

    async def _is_ours(self, task_id: str) -> bool:
        """Whether a task of this gateway was not taken over, although it could have been."""
        task = await self.store.ask(FindTask(task_id))
        return task is not None and not task.state.is_terminal and task.owner == self.store.ownership.owner

    async def retry_while_unavailable(
        self, write: Callable[[], Awaitable[Written]], *, for_s: float = STORE_RETRY_S
    ) -> Written:
        """Repeat a read or write of a run until the store is available again. No caller waits for it."""
        begun = clock.monotonic()
        while True:
            try:
                return await write()
            except GatewayFault as fault:
                waited_s = clock.monotonic() - begun
                if fault.error_type != "store_unavailable" or waited_s > for_s:
                    raise
                self._warn(fault)
            await clock.sleep(STORE_PAUSE_S if waited_s < SHORT_FAULT_S else LONG_PAUSE_S)

    def _warn(self, fault: GatewayFault) -> None:
        """Log once a minute that runs wait for the store, however many they are."""
        if clock.monotonic() - self._warned_at >= WARN_EVERY_S:
            self._warned_at = clock.monotonic()
            log.warning("store unavailable; runs of tasks wait for it", why=fault.message)

    async def current(self, task_id: str) -> Task | None:
        """The task as it is now, for a run. A run that ended because of a failed read would leave its task without an owner."""
        return await self.retry_while_unavailable(lambda: self.store.ask(FindTask(task_id)))

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        """The questions of a task, for a run."""
        return await self.retry_while_unavailable(lambda: self.store.ask(QuestionsOf(task_id, answered=answered)))

    def note(self, task_id: str, principal: str, noted: Noted) -> None:
        """Record what the server reports: stored with the next commit, and sent at once to callers that follow the task."""
        self.store.defer(NoteProgress(task_id, noted))
        self.changes.noted(ProgressMade(task_id, principal, noted))

    def announce(self, task: Task) -> None:
        """Announce a change that the store has made."""
        if task.state.is_terminal:
            self.open_tasks = max(0, self.open_tasks - 1)
        self.changes.changed(task)

    async def find(self, request: Request, task_id: Any, *, proved: bool = False) -> Task:
        """The task, if this caller may see it. Unknown and foreign tasks get the same error; one of the caller that has ended and
        is no longer stored is reported as such while history has its row.

        `proved`: this request has found the task before, or the id is from a signed state that its caller was given.
        """
        if type(task_id) is not str:
            raise CallerError("invalid_params", '"taskId" must be a string.')
        task = await self.store.ask(FindTask(task_id)) if is_task_id(task_id) else None
        if task is None or is_expired(task, self.store.now_ms()):
            row = await self.store.ask(FindHistoryRow(task_id)) if is_task_id(task_id) else None
            # History does not record the conversation of a call.
            kept_apart = request.caller.anonymous and self._by_session
            if row is not None and row.caller == as_key(request.caller.principal) and not kept_apart:
                raise ended_task(row)
            raise unknown_task()
        if not self.may_see(request, task, proved=proved):
            raise unknown_task()
        return task

    def may_see(self, request: Request, task: Task, *, proved: bool = False) -> bool:
        return may_see(request, task, by_session=self._by_session and not proved)

    async def refuse_foreign(self, request: Request, task_id: str) -> None:
        """Raise CallerError if the id is that of a task which this caller may not see."""
        task = await self.store.ask(FindTask(task_id)) if is_task_id(task_id) else None
        if task is not None and not self.may_see(request, task):
            raise unknown_task()

    @property
    def _by_session(self) -> bool:
        return self._plan.value.features.anonymous_tasks_by_session

    def poll_ms(self, task: Task) -> int:
        given = self._plan.value.tasks
        return poll_interval_ms(task.state, self.open_tasks, given.poll_interval_ms, given.approval_poll_interval_ms)

    def has_helpers(self, request: Request) -> bool:
        """Whether this caller may call the tools that follow tasks."""
        return self._plan.value.has_helpers(request.caller.scope)

    async def result_bytes(self, task: Task) -> bytes | None:
        if task.outcome is None:
            return None
        if task.outcome.body is not None:
            return task.outcome.body
        return await self.store.ask(ResultBytes(task.id))

    async def detailed(self, task: Task) -> dict[str, Any]:
        """The task as `tasks/get` of the stateless generation shows it: with its outcome or its open questions."""
        outcome = await self.result_bytes(task) if task.state.is_terminal else None
        if outcome is not None and task.outcome is not None and task.outcome.kind is OutcomeKind.RESULT:
            outcome = await edited(outcome, mark_complete)
        asked = await open_questions(self.store, task)
        questions = {shown_key(task, *key): question.request for key, question in asked.items()}
        return stateless_get_result(task, self.poll_ms(task), outcome=outcome, questions=questions)


def sent_params(task: Task) -> Members:
    """The params of the call as they are sent: exactly the approved arguments, and the other members that the caller sent."""
    rest = wire.members_of(task.params_rest)
    return {"name": wire.raw(task.tool), "arguments": Raw(task.arguments), **rest}
