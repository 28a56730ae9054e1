"""Turn a call in flight into a task when its caller has waited long enough.

An ordinary call costs only an entry in a shared timer queue. When its time is up, the call is stored as already sent and its
caller gets a task handle or a text. The coroutine that carries the call then stores its result instead of returning it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.delivery import Delivery, delivery
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.core.settings.tasks import Tasks
from taskgate.core.tasks import endings
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.task import Task, UpstreamHandle
from taskgate.core.tasks.transition import Cancelled, UpstreamTaskKnown
from taskgate.gateway.catalog.refs import ToolRef
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.replies import error_reply
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.open_promotions import OpenPromotions
from taskgate.gateway.tasks.promoted_task import StoredPromotedTask, ran_before_promotion
from taskgate.gateway.tasks.promotion_timers import SharedTimers, TimerQueue
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.sends import Recheck, TaskSends
from taskgate.gateway.tasks.task_handles import promotion_reply
from taskgate.gateway.tasks.task_records import STORE_RETRY_S, NewCall, TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.gateway.tasks.unstored_calls import answers_unsent, queued_unstored, running_unstored
from taskgate.ports.upstream_replies import ErrorReply, RelayedError, Result
from taskgate.store.operations.tasks import CancelDelivered
from taskgate.telemetry.logs import log

STORED_WITHIN_S: Final = 5.0
"""If the store takes longer to accept a call, its caller gets a reply without a task id."""
_LATER_ROUND: Final = frozenset({"requestState", "inputResponses"})


class PromotionParts(msgspec.Struct, frozen=True):
    """The components that promotion uses."""

    plan: Live[Plan]
    records: TaskRecords
    runs: Runs
    conversations: Conversations
    questions: TaskQuestions
    results: TaskResults
    recheck: Recheck
    open_promotions: OpenPromotions
    adopt_questions: Callable[[Task, Request], Awaitable[None]]
    """Attach the open questions of a call to the task that it became."""


def _is_later_round(request: Request) -> bool:
    """Whether the request returns with answers, so that a round of its call was executed. A server may ask without a state."""
    return request.generation is Generation.STATELESS and not _LATER_ROUND.isdisjoint(request.params)


class Promotion(msgspec.Struct, eq=False):
    """The promotion of one plain call: its timer, and the task that the call becomes."""

    parts: PromotionParts
    request: Request
    tool: ToolRef
    call: Callable[[Request, ToolRef], NewCall]
    """Describes the call as a task once it becomes one."""
    delivery_mode: Delivery
    timer: TimerQueue | None
    started: float
    sent_at: float
    latest_s: float
    """The longest time from its arrival to its promotion if its server is started first."""
    task: Task | None = None
    is_queued: bool = False
    """Whether the call still waits for a slot of its server, so that nothing was sent yet."""
    _promoting: asyncio.Task[None] | None = None
    _run_replaces_carrier: bool = False
    _latest: asyncio.TimerHandle | None = None
    """The timer while the wait for the server does not count: while it starts, or while answers wait for a slot."""

    def server_starts(self) -> None:
        """The program of the server is started for this call. The caller's wait begins when it runs, but has a limit."""
        if self.timer is None or self._promoting is not None:
            return
        self.enter_queue()
        self._wait_for_latest(self.timer)

    async def server_started(self) -> None:
        """The call is about to be sent to the server that was started for it."""
        if self._latest is not None:
            await self.leave_queue()

    def _wait_for_latest(self, timer: TimerQueue) -> None:
        """The time from now until the call is sent does not count as the caller's wait, which keeps its limit."""
        timer.leave(self)
        self._end_latest()
        left = self.started + max(self.latest_s, timer.wait_s) - clock.monotonic()
        self._latest = asyncio.get_running_loop().call_later(max(0.0, left), self.due)

    def _count_again(self) -> None:
        """The call is sent: the caller's wait begins now if it ends before the limit."""
        if self._latest is None or self.timer is None or self._promoting is not None:
            return
        if clock.monotonic() + self.timer.wait_s < self._latest.when():
            self._end_latest()
            self.timer.join(self, clock.monotonic())

    def _end_latest(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
            self._latest = None

    def due(self) -> None:
        """The caller has waited long enough."""
        unsent_answers = self.is_queued and _is_later_round(self.request)
        work = self._give_answers_back() if unsent_answers else self._promote()
        self._promoting = asyncio.get_running_loop().create_task(work)
        self.request.delivery.promotion_began(self._promoting)

    async def _give_answers_back(self) -> None:
        """End a later round that was not sent. As a task the call would begin again at its first round, which was executed."""
        carrier = self.request.delivery.carrier_task()
        await self._answer_unstored(answers_unsent(self.tool.wire))
        carrier.cancel()

    async def _promote(self) -> None:
        """Store the call as a task, then reply."""
        request, call = self.request, self.call(self.request, self.tool)
        waits = self.is_queued
        carrier = request.delivery.carrier_task()
        sent_ms = self.parts.records.store.now_ms() - int((clock.monotonic() - self.sent_at) * 1000)
        question_round = request.delivery.question_round
        state = question_round.state if question_round is not None and question_round.sent else None
        sent = AlreadySent(hashlib.sha256(wire.join(call.params)).hexdigest(), call.server, sent_ms, state)
        task = await self._stored(call, None if waits else sent)
        if task is None:
            if waits:
                carrier.cancel()
            return
        self.task = task
        self.parts.open_promotions.add(task)
        self.parts.conversations.remember(
            task.id, Conversation(request.link_key, request.delivery.profile, request.capabilities)
        )
        if not waits:
            self.parts.runs.adopt(task, carrier, request.delivery)
        parts = self.parts
        promoted_task = StoredPromotedTask(
            task,
            request,
            call.params,
            records=parts.records,
            questions=parts.questions,
            recheck=parts.recheck,
        )
        request.delivery.promoted_to(promoted_task, task.id)
        if request.delivery.last_progress is not None:
            promoted_task.on_notification("notifications/progress", request.delivery.last_progress)
        if request.delivery.waits_text is not None:
            promoted_task.server_waits(request.delivery.waits_text)
        await self.parts.adopt_questions(task, request)
        if not request.delivery.answered:
            await self._answer(task)
        if waits:
            # Nothing was sent: the task run enters the queue itself, and the coroutine that waited so far is cancelled.
            self._run_replaces_carrier = True
            self.parts.runs.start(task)
            carrier.cancel()

    async def _stored(self, call: NewCall, sent: AlreadySent | None) -> Task | None:
        """Store the call as a task. If the store cannot take it in time, its caller gets an error now.

        A call that was sent is stored when the store works again, because its result must be recorded. One that was not sent is
        given up.
        """
        records, open_promotions = self.parts.records, self.parts.open_promotions
        # An attempt may be committed after its time limit: with the same id, the next one finds the task.
        sent_id = None if sent is None else records.new_id()
        # Sent calls are stored whatever the limits say: their callers could only give up and repeat them.
        accept = partial(records.accept, self.request, call, sent=sent, limited=False, task_id=sent_id)
        for_s = STORE_RETRY_S if sent is None else math.inf
        accepting = asyncio.get_running_loop().create_task(records.retry_while_unavailable(accept, for_s=for_s))
        try:
            await asyncio.wait({accepting}, timeout=STORED_WITHIN_S)
            if sent is None and accepting.cancel():
                await asyncio.wait({accepting})
            if not accepting.done() or accepting.cancelled() or accepting.exception() is not None:
                if sent_id is not None:
                    open_promotions.add_unstored(sent_id, self.request)
                await self._answer_unstored(
                    queued_unstored(call.wire_name) if sent is None else running_unstored(call.wire_name)
                )
            if accepting.cancelled():
                return None
            return (await accepting)[0]
        except asyncio.CancelledError:
            accepting.cancel()
            raise
        except Exception as fault:  # one request: its caller has been told
            log.error(
                "a call could not be stored as a task; its outcome is not recorded", tool=call.wire_name, exc_info=fault
            )
            return None
        finally:
            if sent_id is not None:
                open_promotions.remove_unstored(sent_id, self.request)

    async def _answer_unstored(self, problem: TaskgateError) -> None:
        request = self.request
        reply = error_reply(self.parts.plan.value, problem, request.message.id, request.generation, request.message)
        await self._deliver_early(request.delivery.fail_early(problem, reply.status, reply.body))

    async def _answer(self, task: Task) -> None:
        waited_s = clock.monotonic() - self.started
        reply = promotion_reply(self.request, task, self.parts.records, self.delivery_mode, waited_s)
        await self._deliver_early(self.request.delivery.answer_early(reply))

    async def _deliver_early(self, delivering: Awaitable[None]) -> None:
        try:
            await delivering
        except Exception as fault:
            # The caller may have disconnected; the call continues.
            log.info("early reply not delivered", tool=self.tool.wire, exc_info=fault)

    def enter_queue(self) -> None:
        """Note that the call waits for a slot of its server, or for its start."""
        self.is_queued = True
        # A caller that named its longest wait itself gets its reply in that time.
        may_wait = self.request.delivery.start_timer is not None
        if may_wait and self.timer is not None and _is_later_round(self.request):
            self._wait_for_latest(self.timer)

    async def leave_queue(self) -> None:
        """Note that the call has its slot and is about to be sent. Waits for a promotion in progress."""
        if self._promoting is not None:
            await asyncio.shield(self._promoting)
        self._count_again()
        self.is_queued = False
        # The time in the queue does not count as execution time.
        self.sent_at = clock.monotonic()

    async def task_if_promoted(self) -> Task | None:
        """Stop the timer and return the task that the call became, or None if the caller still waits for a reply."""
        self.stop_timer()
        if self._promoting is not None:
            try:
                await asyncio.shield(self._promoting)
            except asyncio.CancelledError:
                self._give_up_unstored()
                raise
        return self.task

    def stop_timer(self) -> bool:
        """Remove the call from the timer queue. Return whether no promotion has begun."""
        # It refers to this object, which refers to the request: a cycle would keep both until the next full collection.
        self.request.delivery.times_start(None)
        if self.timer is not None:
            self.timer.leave(self)
            self._end_latest()
        return self._promoting is None

    async def finish(self, task: Task, result: bytes, handle: UpstreamHandle | None) -> None:
        """Store the result of the promoted call, or follow the task that the server returned."""
        if handle is None:
            await self.parts.results.record(task.id, Result(result))
            return
        known = await self.parts.records.conclude(task.id, UpstreamTaskKnown(handle))
        if known is not None:
            self.parts.runs.release(known)
            self.parts.runs.follow(known)

    async def fail(self, task: Task, problem: Exception) -> None:
        if isinstance(problem, RelayedError):
            await self.parts.results.record(task.id, ErrorReply(problem.raw, problem.code), urls_checked=True)
        elif isinstance(problem, UpstreamError):
            await self._retry_or_fail(task, problem)
        elif isinstance(problem, TaskgateError):
            await self.parts.records.conclude(task.id, endings.by_error(task, problem))
        else:
            log.error("promoted call failed", task=task.id, exc_info=problem)
            await self.parts.runs.fail_internal(task)

    async def _retry_or_fail(self, task: Task, problem: UpstreamError) -> None:
        """Handle a connection failure after promotion like that of any other task."""
        sends = TaskSends(self.parts.records, self.parts.recheck, task, None)
        if await ran_before_promotion(self.parts.records, task.id, self.request.delivery.server_state):
            await sends.give_up(problem)
        elif await sends.after_failure(problem):
            current = await self.parts.records.current(task.id) or task
            self.parts.runs.release(current)
            self.parts.runs.start(current)

    def _give_up_unstored(self) -> bool:
        """Stop waiting for the store if the caller has its reply: such a call is cancelled only when the gateway stops."""
        if self.task is not None or self._promoting is None or not self.request.delivery.answered:
            return False
        self._promoting.cancel()
        return True

    async def interrupted(self) -> bool:
        """Handle the cancellation of the coroutine that carries the call. Return whether its caller already has a reply."""
        if self._give_up_unstored():
            return True
        task = await self.task_if_promoted()
        if task is None:
            return False
        if self.parts.runs.closing or self._run_replaces_carrier:
            return True
        # The caller cancelled during promotion; a cancellation of the task itself would have been stored before.
        if await self.parts.records.conclude(task.id, Cancelled("the caller cancelled the call")) is not None:
            await self.parts.records.store.do(CancelDelivered(task.id))
        return True


class Promotions:
    """Start the promotion timer of plain calls."""

    def __init__(self, plan: Live[Plan], parts: PromotionParts, tools: SlowTools) -> None:
        self.plan = plan
        self.parts = parts
        self.timers = SharedTimers()
        self.tools = tools
        """Tools of which a call was promoted."""
        self._default: tuple[Tasks, Delivery, TimerQueue | None] | None = None

    def delivery_mode(self, request: Request) -> Delivery:
        """How long the caller waits for the result, and what it gets after that."""
        if request.delivery.mode is not None:
            return request.delivery.mode
        settings, has_token = self.plan.value.tasks, request.progress_token is not None
        accepts_tasks = request.envelope is not None and request.envelope.accepts_tasks
        if has_token or accepts_tasks:
            return delivery(
                settings,
                request.generation,
                accepts_tasks=accepts_tasks,
                has_token=has_token,
                client=request.client_name,
            )
        return self._default_mode(settings)[1]

    def _default_mode(self, settings: Tasks) -> tuple[Tasks, Delivery, TimerQueue | None]:
        """The delivery mode of callers that mention neither tasks nor progress. It is the same for all of them."""
        delivery_mode = delivery(settings, Generation.STATEFUL, accepts_tasks=False, has_token=False, client="")
        self._default = usual = (settings, delivery_mode, self._queue(delivery_mode))
        return usual

    def _queue(self, delivery_mode: Delivery) -> TimerQueue | None:
        return self.timers.queue(delivery_mode.wait_s) if delivery_mode.wait_s is not None else None

    def note_promoted(self, server: str, tool: str) -> None:
        self.tools.add(server, tool)

    def begin(self, request: Request, tool: ToolRef, call: Callable[[Request, ToolRef], NewCall]) -> Promotion:
        """Start the timer of a call. `call` describes it as a task once it becomes one.

        Raises GatewayFault if promoted calls of its caller alone have reached the limit on open tasks.
        """
        if self.parts.open_promotions.by_holder:
            self.parts.open_promotions.refuse_at_limit(request)
        envelope, reply = request.envelope, request.delivery
        settings = self.plan.value.tasks
        if reply.mode is None and request.progress_token is None and (envelope is None or not envelope.accepts_tasks):
            usual = self._default
            if usual is None or usual[0] is not settings:
                usual = self._default_mode(settings)
            _, delivery_mode, timer = usual
        else:
            delivery_mode = self.delivery_mode(request)
            timer = self._queue(delivery_mode)
        if reply.carrier is None:
            reply.carrier_task()
        now = clock.monotonic()
        promotion = Promotion(
            parts=self.parts,
            request=request,
            tool=tool,
            call=call,
            delivery_mode=delivery_mode,
            timer=timer,
            started=now,
            sent_at=now,
            latest_s=settings.promote_latest_ms / 1000,
        )
        if timer is not None:
            timer.join(promotion, now)
            if reply.mode is None:
                # A caller that named the longest wait itself gets its reply in that time.
                reply.times_start(promotion)
        return promotion
