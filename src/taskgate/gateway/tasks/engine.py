"""Everything about tasks that the use cases need, in one place: make one, hold one for its caller, adopt a server's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, assert_never

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit import AuditEntry
from taskgate.core.delivery import Form
from taskgate.core.errors import CallerError, Executed, GatewayFault, UpstreamError
from taskgate.core.generations import RELATED_TASK, Generation, complete
from taskgate.core.tasks import endings
from taskgate.core.tasks.endings import RecoveryAction, Ttl, read_ttl
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AlreadySent, RunOn, Task, UpstreamHandle
from taskgate.core.tasks.transition import ApprovalExpired, InputSettled, UpstreamTaskKnown
from taskgate.core.wire import with_meta
from taskgate.gateway.events import ApprovalOpened, EventHub
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.request import Heartbeat, Request, next_step
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.methods import LONGEST_RESULT_WAIT_S, TaskMethods
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.promote import Promotions, handed_over, task_handle
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import NewCall, TaskRecords
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.outlet import CancelNote
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log

# What the next owner does with what it finds, and what time does to tasks: recovery, deadlines, retention.
#
# The table of what to do is `core.tasks.endings`; here it is carried out. Nothing that may have reached a tool is sent
# again unless its class allows it.

PAGE: Final = 500
CLAIM_SHOWS_S: Final = 30.0
"""Whether a claim whose answer was lost has been committed is known by then."""

_Ending: TypeAlias = Literal[
    RecoveryAction.LEAVE_TO_A_PERSON,
    RecoveryAction.EXPIRE_APPROVAL,
    RecoveryAction.REPORT_UNKNOWN,
    RecoveryAction.REPORT_FAILED,
    RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
    RecoveryAction.TELL_UPSTREAM_CANCELLED,
]


class Recovery:
    def __init__(
        self,
        records: TaskRecords,
        runs: Runs,
        deadlines: TaskDeadlines,
        approval_due: Callable[[str], Awaitable[None]],
        approvals_over: Callable[[], Iterable[str]],
    ) -> None:
        """`approval_due` carries out what the end of an approval's time means; `approvals_over` are those whose time has passed
        by the monotonic clock."""
        self._records = records
        self._runs = runs
        self._deadlines = deadlines
        self._approval_due = approval_due
        self._approvals_over = approvals_over
        self._look_at: float | None = None
        """When to look for tasks that were claimed although nobody was told so."""

    async def take_over(self) -> int:
        """At start: every open task of an owner that is gone is classified and moved on."""
        store, began = self._records.store, clock.monotonic()
        while await store.claim():
            pass
        if store.is_restored:
            log.warning(
                "the store is older than when it was last written, as after a restored backup: calls that may run only once "
                "are not run, and say so"
            )
        count, after = 0, ""
        while tasks := await store.claimed(after, PAGE):
            # Together, so that the writes of a whole page share their commits.
            await asyncio.gather(*(self._move_on(task) for task in tasks))
            count, after = count + len(tasks), tasks[-1].id
        if store.is_restored:
            await store.accept_restored()
        self._records.recount(await store.open_count())
        if count:
            log.info("tasks recovered", count=count, seconds=round(clock.monotonic() - began, 3))
        return count

    async def take_over_dead(self) -> int:
        """While we run: another gateway on this store has died. Only what is claimed now is moved on."""
        count = 0
        while claimed := await self._claimed():
            try:
                found = await asyncio.gather(*(self._records.current(task_id) for task_id in claimed))
                # Tasks of our own come back to us where nobody had claimed them, and their runs go on.
                left = [task for task in found if task is not None and not self._runs.is_running(task.id)]
                await asyncio.gather(*map(self._move_on, left))
            except Exception:  # they are ours now, and nobody else will look for them
                self._runs.left.update(claimed)
                raise
            count += len(claimed)
        if count:
            log.warning("tasks of a gateway that died were taken over", count=count)
        return count

    async def _claimed(self) -> tuple[str, ...]:
        try:
            return await self._records.store.claim()
        except GatewayFault:
            self._look_at = clock.monotonic() + CLAIM_SHOWS_S
            raise

    async def pick_up(self) -> None:
        """Tasks of ours that nobody runs: their run ended, or their claim was answered, while the store was in trouble."""
        store, runs = self._records.store, self._runs
        for task_id in tuple(runs.left):
            task = await store.get(task_id)
            runs.left.discard(task_id)
            if task is not None and task.owner == store.ownership.owner and not runs.is_running(task_id):
                try:
                    await self._move_on(task)
                except Exception as fault:  # one task of many: it is tried again in the next round
                    log.error("task could not be picked up; it will be tried again", task=task_id, exc_info=fault)
                    runs.left.add(task_id)
        if self._look_at is None or clock.monotonic() < self._look_at:
            return
        after, untouched_ms = "", store.now_ms() - int(CLAIM_SHOWS_S * 1000)
        while tasks := await store.claimed(after, PAGE):
            idle = [task for task in tasks if task.updated_ms < untouched_ms and not runs.is_running(task.id)]
            await asyncio.gather(*(self._move_on(task) for task in idle))
            after = tasks[-1].id
        self._look_at = None

    async def _move_on(self, task: Task) -> None:
        store = self._records.store
        self._deadlines.note(task)
        action = endings.next_action(task, store.now_ms(), restored=store.is_restored)
        match action:
            case RecoveryAction.RUN | RecoveryAction.RESEND:
                self._runs.start(task)
            case RecoveryAction.RECHECK_THEN_RUN:
                if task.run_on is RunOn.ONCE_ALLOWED:
                    self._runs.start(task)
            case RecoveryAction.POLL_UPSTREAM:
                # A question that a stateful upstream had put died with its connection; it asks again if it wants to.
                self._runs.follow(await self._withdrawn(task))
            case RecoveryAction.WITHDRAW_THEN_RESEND:
                self._runs.start(await self._withdrawn(task))
            case RecoveryAction.KEEP_WAITING_FOR_INPUT:
                if task.upstream_handle is not None:
                    self._runs.follow(task)
                else:
                    self._runs.go_on(task)
            case RecoveryAction.KEEP_WAITING_FOR_APPROVAL | RecoveryAction.NOTHING:
                return
            case _:
                await self._end(task, action)

    async def _end(self, task: Task, action: _Ending) -> None:
        match action:
            case RecoveryAction.LEAVE_TO_A_PERSON:
                await self._records.conclude(task.id, endings.restored(task))
            case RecoveryAction.EXPIRE_APPROVAL:
                await self.expire(task)
            case RecoveryAction.REPORT_UNKNOWN | RecoveryAction.REPORT_FAILED:
                await self._records.conclude(task.id, endings.lost(task, _lost(task)))
            case RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN | RecoveryAction.WITHDRAW_THEN_REPORT_FAILED:
                await self._records.conclude(task.id, endings.lost(await self._withdrawn(task), _lost(task)))
            case RecoveryAction.TELL_UPSTREAM_CANCELLED:
                await self._runs.cancel(task, CancelNote())
            case _:
                assert_never(action)

    async def _withdrawn(self, task: Task) -> Task:
        if not task.question_keys:
            return task
        return await self._records.conclude(task.id, InputSettled(task.question_keys)) or task

    async def expire(self, task: Task) -> None:
        if task.approval_id is not None:
            await self._approval_due(task.approval_id)
            return
        text = "Nobody approved this call in time. The tool was not run."
        if task.state is TaskState.APPROVED:
            text = "The approval of this call was not used in time. The tool was not run."
        error = endings.by_error(task, CallerError("approval_expired", text)).error
        await self._records.conclude(task.id, ApprovalExpired(error, text))

    async def enforce_clocks(self) -> None:
        """Carry out what has come to its end: runs of ours by the monotonic clock, approvals by whichever clock is first."""
        due = await self._records.store.due(PAGE)
        for approval_id in self._approvals_over():
            await self._approval_due(approval_id)
        for task_id in due.approvals:
            task = await self._records.store.get(task_id)
            if task is not None:
                await self.expire(task)
        for approval_id in due.holds:
            await self._approval_due(approval_id)
        for task_id in due.executions:
            task = await self._records.store.get(task_id) if task_id not in self._deadlines else None
            if task is not None:
                self._deadlines.note(task)
        ours = self._records.store.ownership.owner
        for task_id in self._deadlines.over():
            task = await self._records.store.get(task_id)
            if task is None or task.state.is_terminal or task.owner != ours:
                self._deadlines.forget(task_id)
                continue
            ended = await self._records.advance(task_id, endings.past_deadline(task))
            await self._runs.cancel(ended or task, CancelNote())

    async def sweep(self, portions: int) -> bool:
        """Forget so many portions of what is past its time; whether there may be more."""
        swept = await self._records.store.sweep(portions)
        for task in swept.expired:
            self._records.changes.expired(task)
        return swept.more


def _lost(task: Task) -> UpstreamError:
    return UpstreamError("upstream_unreachable", f"Contact with {task.server} was lost.", executed=Executed.MAYBE)


@dataclass(slots=True, eq=False, kw_only=True)
class TaskEngine:
    plan: Live[Plan]
    store: Store
    events: EventHub
    records: TaskRecords
    conversations: Conversations
    questions: TaskQuestions
    account_questions: AccountQuestions
    runs: Runs
    promotions: Promotions
    methods: TaskMethods
    recovery: Recovery
    followers: Followers
    presence: CallerPresence
    audit_approval: Callable[[ApprovalRequest, str], AuditEntry]
    """The audit record of an approval that is asked for together with a task."""

    @property
    def draining(self) -> bool:
        """The gateway is going down: replies are not held any longer, and nothing is cancelled because of it."""
        return self.methods.draining

    def ttl_ms(self, task_member: Any) -> Ttl:
        """The ttl that a caller's `task` asks for, checked."""
        if type(task_member) is not dict:
            raise CallerError("invalid_params", '"task" must be an object, for example {"ttl": 600000}.')
        settings = self.plan.value.calls
        return read_ttl(task_member.get("ttl"), default_ms=settings.default_ttl_ms, max_ms=settings.max_ttl_ms)

    async def create(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None
    ) -> tuple[Task, bytes]:
        """The caller asked for a task: it gets a handle at once, and the run starts unless someone must agree first."""
        task = await self._accepted(request, call, approval, key, held=False)
        return task, wire.encode(task_handle(request, task, self.records))

    async def _accepted(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None, *, held: bool
    ) -> Task:
        task_id = self.records.new_id()
        await next_step(request)
        audit = self.audit_approval(approval, task_id) if approval is not None else None
        await next_step(request)
        task, fresh = await self.records.accept(request, call, approval=approval, key=key, task_id=task_id, audit=audit)
        if fresh:
            self.conversations.remember(
                task.id, Conversation(request.link_key, request.delivery.profile, request.capabilities)
            )
            self.followers.joined(task, request, held=held)
            if approval is None:
                self.runs.start(task)
            else:
                self.events.publish(ApprovalOpened(task, approval, request))
        return task

    async def hold(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None
    ) -> tuple[Task, bytes]:
        """A plain call that must be durable from the start: wait for its result by the parts, then hand it over."""
        delivery_mode = self.promotions.delivery_mode(request)
        at_once = approval is not None and delivery_mode.form is Form.HANDLE
        task = await self._accepted(request, call, approval, key, held=not at_once)
        if at_once:
            return task, wire.encode(task_handle(request, task, self.records))
        # A closed stream is a cancel for a stateless caller, but one that gave a key means to come back with it.
        kept = key is not None and request.generation is Generation.STATELESS
        return task, await self.wait_out(request, task, waiting_for_people=approval is not None, kept=kept)

    async def wait_out(self, request: Request, task: Task, *, waiting_for_people: bool, kept: bool = False) -> bytes:
        """Hold the reply as long as this caller's delivery mode allows: its result, or news of where to find it later."""
        delivery_mode = self.promotions.delivery_mode(request)
        text = f"Waiting for approval of {task.wire_name}" if waiting_for_people else f"Running {task.wire_name}"
        beat = Heartbeat(request, self.plan.value.calls.delivery.heartbeat_s, text)
        began = clock.monotonic()
        beat.start()
        wait_s = delivery_mode.wait_s if delivery_mode.wait_s is not None else LONGEST_RESULT_WAIT_S
        self.followers.carries(task.id, request)
        try:
            task = await self.methods.wait(request, task, wait_s)
        except BaseException:
            if not self.draining and not kept:
                await self._give_up(task)
            raise
        finally:
            beat.stop()
            self.followers.waits_no_more(task.id, request)
            self.followers.left(task.id, request)
        if task.state.is_terminal:
            return await self.delivered(request, task)
        return handed_over(request, task, self.records, delivery_mode, clock.monotonic() - began)

    async def _give_up(self, task: Task) -> None:
        """The caller cancelled while it waited: nobody will come for this task."""
        current = await self.store.get(task.id)
        if current is not None and not current.state.is_terminal:
            await self.methods.cancel_task(current, "the caller cancelled the call")

    async def delivered(self, request: Request, task: Task) -> bytes:
        """The result of a finished task as the reply to a plain call."""
        final = await self.methods.final(request, task)
        return await edited(final, lambda raw: _unrelated(raw, request.generation))

    async def adopt_upstream_task(self, request: Request, call: NewCall, handle: UpstreamHandle) -> bytes:
        """The upstream answered a plain call with a task of its own: it becomes one of ours, under our id."""
        sent = AlreadySent("", call.server, self.store.now_ms())
        try:
            task, _ = await self.records.accept(request, call, sent=sent, limited=False)
        except GatewayFault as fault:
            raise GatewayFault(fault.error_type, fault.message, executed=Executed.MAYBE) from None
        self.conversations.remember(
            task.id, Conversation(request.link_key, request.delivery.profile, request.capabilities)
        )
        known = await self.records.conclude(task.id, UpstreamTaskKnown(handle))
        self.runs.follow(known or task)
        return wire.encode(task_handle(request, task, self.records))

    def drain(self) -> None:
        self.runs.stop_sending()
        self.methods.drain()

    async def close(self) -> None:
        await self.runs.close()


def _unrelated(result: bytes, generation: Generation) -> bytes:
    plain = wire.join(with_meta(wire.members_of(result), {}, drop=(RELATED_TASK,)))
    return complete(plain) if generation is Generation.STATELESS else plain
