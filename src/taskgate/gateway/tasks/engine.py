"""The interface of tasks for use cases: create one, and hold the reply of a durable call."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.delivery import ReplyForm
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import RELATED_TASK, Generation
from taskgate.core.generations.stateless import mark_complete
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.joined_call import JoinedCall
from taskgate.core.meta import with_meta
from taskgate.core.meta_keys import APPROVAL, JOINED
from taskgate.core.tasks.deadlines import Ttl, read_ttl
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import ApprovalOpened, EventHub
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.request import Request, yield_if_large
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.deadline_enforcement import DeadlineEnforcement
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.held_replies import HeldReplies
from taskgate.gateway.tasks.methods import LONGEST_RESULT_WAIT_S, TaskMethods
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.promotion import Promotions
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.questions_in_reply import QuestionsInReply
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_handles import promotion_reply, task_handle
from taskgate.gateway.tasks.task_records import Acceptance, NewCall, TaskRecords
from taskgate.ports.store import Store
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.upkeep import sweep


class TaskEngine(msgspec.Struct, eq=False, kw_only=True):
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
    deadlines: DeadlineEnforcement
    followers: Followers
    presence: CallerPresence
    held_replies: HeldReplies
    asking: QuestionsInReply
    address: PublicAddress
    audit_approval: Callable[[ApprovalRequest, str], AuditEntry]
    """The audit entry of an approval that is requested together with a task."""

    @property
    def draining(self) -> bool:
        """The gateway is shutting down: replies are no longer held, and no call is cancelled because of it."""
        return self.methods.draining

    def ttl_ms(self, task_member: Any) -> Ttl:
        """The ttl that a caller requests in `task`, checked."""
        if type(task_member) is not dict:
            raise CallerError("invalid_params", '"task" must be an object, for example {"ttl": 600000}.')
        settings = self.plan.value.tasks
        return read_ttl(task_member.get("ttl"), default_ms=settings.default_ttl_ms, max_ms=settings.max_ttl_ms)

    async def create(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None
    ) -> tuple[Task, bytes]:
        """Create a task and return its handle. The run starts at once unless an approval is needed."""
        task = await self.accept(request, call, approval, key, held=False)
        return task, wire.encode(task_handle(request, task, self.records, self._approval_page(task)))

    async def accept(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None, *, held: bool
    ) -> Task:
        """Store the call as a task. If it joined an equal call, `ReplyDelivery.joined` names that one."""
        task_id = self.records.new_id()
        await yield_if_large(request)
        audit = self.audit_approval(approval, task_id) if approval is not None else None
        await yield_if_large(request)
        task, how = await self.records.accept(request, call, approval=approval, key=key, task_id=task_id, audit=audit)
        request.delivery.mark_accepted(task.id)
        if how is Acceptance.JOINED:
            request.delivery.set_joined(JoinedCall(task.id, secrets.token_hex(8)))
        if how is not Acceptance.NEW and not held:
            self.held_replies.mark_id_known(task.id)
        if how is Acceptance.NEW:
            self.conversations.remember(
                task.id, Conversation(request.link_key, request.delivery.profile, request.capabilities)
            )
            self.followers.add_creator(task, request, held=held)
            if approval is None:
                self.runs.start(task)
            else:
                self.events.publish(ApprovalOpened(task, approval, request))
        return task

    def start_script_call(self, script: Task, task: Task, approval: ApprovalRequest | None, request: Request) -> None:
        """Run a call of a script that was stored with its step, or put it to the approvers."""
        self.conversations.remember(task.id, self.conversations.of(script))
        if approval is None:
            self.runs.start(task)
        else:
            self.events.publish(ApprovalOpened(task, approval, request))

    async def hold(
        self,
        request: Request,
        call: NewCall,
        approval: ApprovalRequest | None,
        key: str | None,
        *,
        asks: bool = True,
    ) -> tuple[Task, bytes]:
        """Store a call without task metadata, and hold its reply until the result is available or the caller's wait has ended.

        `asks`: whether the reply may carry questions.
        """
        delivery_mode = self.promotions.delivery_mode(request)
        at_once = approval is not None and delivery_mode.form is ReplyForm.HANDLE
        task = await self.accept(request, call, approval, key, held=not at_once)
        if at_once:
            return task, wire.encode(task_handle(request, task, self.records, self._approval_page(task)))
        # Closing the stream cancels a stateless call, but a caller with an idempotency key can return with it.
        kept = key is not None and request.generation is Generation.STATELESS
        return task, await self.hold_reply(request, task, waiting_for_people=approval is not None, kept=kept, asks=asks)

    async def hold_reply(
        self,
        request: Request,
        task: Task,
        *,
        waiting_for_people: bool,
        kept: bool = False,
        asks: bool = True,
    ) -> bytes:
        """Hold the reply for as long as the caller's delivery mode allows. Return the result, or a reference to the task.

        Questions of the task are returned as soon as there are any, to stateless callers that can answer them.
        """
        delivery_mode = self.promotions.delivery_mode(request)
        beat = Heartbeat(request, self.plan.value.tasks.heartbeat_ms / 1000, *self._held_text(task))
        began = clock.monotonic()
        # A person waiting at the client needs the task id and the approval page now, to have the call approved.
        beat.start(at_once=waiting_for_people)
        wait_s = delivery_mode.wait_s if delivery_mode.wait_s is not None else LONGEST_RESULT_WAIT_S
        self.followers.add_held_call(task.id, request)
        self.held_replies.opened(task.id, id_known=kept, joins=request.delivery.joined is not None)
        asked: bytes | None = None

        async def is_asked(now: Task) -> bool:
            nonlocal asked
            asked = await self.asking.of_held_call(request, now) if asks else None
            return asked is not None

        try:
            # An approved call runs: its heartbeats must no longer ask for an approval.
            task = await self.methods.wait(
                request, task, wait_s, lambda now: beat.describe(*self._held_text(now)), until=is_asked
            )
        except BaseException:
            if self.held_replies.cancelled(task.id) and not self.draining:
                await self._cancel_unwanted(task)
            raise
        else:
            self.held_replies.answered(task.id)
        finally:
            beat.stop()
            self.followers.remove_request(task.id, request)
            self.followers.drop_progress(task.id, request)
        if asked is not None:
            return asked
        if task.state.is_terminal:
            return await self.result_reply(request, task)
        waited_s = clock.monotonic() - began
        return promotion_reply(request, task, self.records, delivery_mode, waited_s, page=self._approval_page(task))

    def _held_text(self, task: Task) -> tuple[str, dict[str, Any]]:
        """The text and `_meta` of the heartbeats of a held reply."""
        if task.state is not TaskState.AWAITING_APPROVAL:
            return f"Running {task.wire_name}", {}
        page, meta, where = self._approval_page(task), dict[str, Any](), ""
        if page is not None:
            meta = {RELATED_TASK: {"taskId": task.id}, APPROVAL: {"id": task.approval_id, "url": page}}
            where = f" An approver can decide at {page}."
        return f"Waiting for approval of {task.wire_name} as task {task.id}.{where}", meta

    def _approval_page(self, task: Task) -> str | None:
        """The page on which approvers decide on the task, if it waits for an approval."""
        if task.state is not TaskState.AWAITING_APPROVAL or task.approval_id is None:
            return None
        return self.address.approval(task.approval_id)

    async def _cancel_unwanted(self, task: Task) -> None:
        """Cancel a task whose caller cancelled the held call, because no one can collect its result."""
        current = await self.store.ask(FindTask(task.id))
        if current is not None and not current.state.is_terminal:
            await self.methods.cancel_task(current, "the caller cancelled the call")

    async def result_reply(self, request: Request, task: Task) -> bytes:
        """The result of a finished task as the reply to a plain call."""
        final = await self.methods.final_result(request, task)
        return await edited(final, lambda raw: _without_related_task(raw, request.generation, request.delivery.joined))

    async def sweep(self, portions: int) -> bool:
        """Delete this many portions of expired data. Return whether there may be more."""
        swept = await sweep(self.store, portions)
        for task in swept.expired:
            self.records.changes.expired(task)
        return swept.more

    def drain(self) -> None:
        self.runs.stop_sending()
        self.methods.drain()

    async def close(self) -> None:
        await self.runs.close()


def _without_related_task(result: bytes, generation: Generation, joined: JoinedCall | None) -> bytes:
    more = {JOINED: wire.raw(joined.shown())} if joined is not None else {}
    plain = wire.join(with_meta(wire.members_of(result), more, drop=(RELATED_TASK,)))
    return mark_complete(plain) if generation is Generation.STATELESS else plain
