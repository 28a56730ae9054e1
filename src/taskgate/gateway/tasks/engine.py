"""Everything about tasks that the use cases need, in one place: make one, hold one for its caller, promote a plain call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskgate.core import wire
from taskgate.core.audit import Entry
from taskgate.core.delivery import Delivery, DeliverySettings, Form, delivery
from taskgate.core.errors import CallerError, Executed, GatewayFault
from taskgate.core.generations import RELATED_TASK, Generation
from taskgate.core.generations.stateless_2026 import complete
from taskgate.core.meta import with_meta
from taskgate.core.tasks import expiry
from taskgate.core.tasks.birth import AlreadySent
from taskgate.core.tasks.happening import UpstreamTaskKnown
from taskgate.core.tasks.task import Task, UpstreamHandle
from taskgate.gateway.events.events import ApprovalOpened
from taskgate.gateway.events.hub import EventHub
from taskgate.gateway.plan.live import Live
from taskgate.gateway.plan.plan import Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.heartbeat import Heartbeat
from taskgate.gateway.tasks.methods import LONGEST_RESULT_WAIT_S, TaskMethods
from taskgate.gateway.tasks.promote import Ladder, Promotion, handed_over, task_handle
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recover import Recovery
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.shared_timer import Line, Patience
from taskgate.gateway.tasks.task_records import NewCall, TaskDesk
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store import Store


@dataclass(slots=True, eq=False, kw_only=True)
class TaskEngine:
    plan: Live[Plan]
    store: Store
    events: EventHub
    desk: TaskDesk
    conversations: Conversations
    questions: TaskQuestions
    runs: Runs
    ladder: Ladder
    methods: TaskMethods
    recovery: Recovery
    followers: Followers
    audit_approval: Callable[[ApprovalRequest, str], Entry]
    """The audit record of an approval that is asked for together with a task."""
    patience: Patience = field(default_factory=Patience)
    _usual: tuple[DeliverySettings, Delivery, Line | None] | None = None

    @property
    def draining(self) -> bool:
        """The gateway is going down: replies are not held any longer, and nothing is cancelled because of it."""
        return self.methods.draining

    def rung(self, request: Request) -> Delivery:
        """Which rung of the ladder this request stands on."""
        if request.rung is not None:
            return request.rung
        settings, has_token = self.plan.value.calls.delivery, request.progress_token is not None
        wants_tasks = request.envelope is not None and request.envelope.wants_tasks
        if has_token or wants_tasks:
            return delivery(
                settings,
                request.generation,
                wants_tasks=wants_tasks,
                has_token=has_token,
                client=request.client_name,
            )
        return self._usual_rung(settings)[1]

    def _usual_rung(self, settings: DeliverySettings) -> tuple[DeliverySettings, Delivery, Line | None]:
        """Callers who say nothing of tasks or progress all stand on the same rung."""
        rung = delivery(settings, Generation.STATEFUL, wants_tasks=False, has_token=False, client="")
        self._usual = usual = (settings, rung, self._line(rung))
        return usual

    def _line(self, rung: Delivery) -> Line | None:
        return self.patience.line(rung.wait_s) if rung.wait_s is not None else None

    def ttl_ms(self, task_member: Any) -> expiry.Ttl:
        """The ttl that a caller's `task` asks for, checked."""
        if type(task_member) is not dict:
            raise CallerError("invalid_params", '"task" must be an object, for example {"ttl": 600000}.')
        settings = self.plan.value.calls
        return expiry.read_ttl(task_member.get("ttl"), default_ms=settings.default_ttl_ms, max_ms=settings.max_ttl_ms)

    async def create(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None
    ) -> tuple[Task, bytes]:
        """The caller asked for a task: it gets a handle at once, and the run starts unless someone must agree first."""
        task = await self._accepted(request, call, approval, key, held=False)
        return task, wire.encode(task_handle(request, task, self.desk))

    async def _accepted(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None, *, held: bool
    ) -> Task:
        task_id = self.desk.new_id()
        audit = self.audit_approval(approval, task_id) if approval is not None else None
        task, fresh = await self.desk.accept(request, call, approval=approval, key=key, task_id=task_id, audit=audit)
        if fresh:
            self.conversations.remember(task.id, Conversation(request.link_key, request.face, request.capabilities))
            self.followers.joined(task, request, held=held)
            if approval is None:
                self.runs.start(task)
            else:
                self.events.publish(ApprovalOpened(task, approval, request))
        return task

    async def hold(
        self, request: Request, call: NewCall, approval: ApprovalRequest | None, key: str | None
    ) -> tuple[Task, bytes]:
        """A plain call that must be durable from the start: wait for its result by the ladder, then hand it over."""
        rung = self.rung(request)
        at_once = approval is not None and rung.form is Form.HANDLE
        task = await self._accepted(request, call, approval, key, held=not at_once)
        if at_once:
            return task, wire.encode(task_handle(request, task, self.desk))
        # A closed stream is a cancel for a stateless caller, but one that gave a key means to come back with it.
        kept = key is not None and request.generation is Generation.STATELESS
        return task, await self.wait_out(request, task, waiting_for_people=approval is not None, kept=kept)

    async def wait_out(self, request: Request, task: Task, *, waiting_for_people: bool, kept: bool = False) -> bytes:
        """Hold the reply as long as this caller's rung allows: its result, or news of where to find it later."""
        rung = self.rung(request)
        text = f"Waiting for approval of {task.wire_name}" if waiting_for_people else f"Running {task.wire_name}"
        beat = Heartbeat(request, self.plan.value.calls.delivery.heartbeat_s, text)
        beat.start()
        wait_s = rung.wait_s if rung.wait_s is not None else LONGEST_RESULT_WAIT_S
        try:
            task = await self.methods.wait(request, task, wait_s)
        except BaseException:
            if not self.draining and not kept:
                await self._give_up(task)
            raise
        finally:
            beat.stop()
            self.followers.left(task.id, request)
        if task.state.is_terminal:
            return await self.delivered(request, task)
        return handed_over(request, task, self.desk, rung, wait_s)

    async def _give_up(self, task: Task) -> None:
        """The caller cancelled while it waited: nobody will come for this task."""
        current = await self.store.get(task.id)
        if current is not None and not current.state.is_terminal:
            await self.methods.cancel_task(current, "the caller cancelled the call")

    async def delivered(self, request: Request, task: Task) -> bytes:
        """The result of a finished task as the reply to a plain call."""
        final = await self.methods.final(request, task)
        plain = wire.join(with_meta(wire.members_of(final), {}, drop=(RELATED_TASK,)))
        return complete(plain) if request.generation is Generation.STATELESS else plain

    def promotion(self, request: Request, call: Callable[[], NewCall]) -> Promotion:
        envelope = request.envelope
        if request.rung is None and request.progress_token is None and (envelope is None or not envelope.wants_tasks):
            settings = self.plan.value.calls.delivery
            usual = self._usual
            if usual is None or usual[0] is not settings:
                usual = self._usual_rung(settings)
            return Promotion(self.ladder, request, call, usual[1], usual[2])
        rung = self.rung(request)
        return Promotion(self.ladder, request, call, rung, self._line(rung))

    async def adopt_upstream_task(self, request: Request, call: NewCall, handle: UpstreamHandle) -> bytes:
        """The upstream answered a plain call with a task of its own: it becomes one of ours, under our id."""
        sent = AlreadySent("", call.server, self.store.now_ms())
        try:
            task, _ = await self.desk.accept(request, call, sent=sent, limited=False)
        except GatewayFault as fault:
            raise GatewayFault(fault.error_type, fault.message, executed=Executed.MAYBE) from None
        self.conversations.remember(task.id, Conversation(request.link_key, request.face, request.capabilities))
        known = await self.desk.conclude(task.id, UpstreamTaskKnown(handle))
        self.runs.follow(known or task)
        return wire.encode(task_handle(request, task, self.desk))

    def drain(self) -> None:
        self.runs.stop_sending()
        self.methods.drain()

    async def close(self) -> None:
        await self.runs.close()
