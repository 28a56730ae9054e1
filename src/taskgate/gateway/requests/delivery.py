"""How the reply of one request reaches its caller, and the state of the request until then.

`Request` is immutable. What changes is kept here: whether the request was sent or answered, which asyncio task carries it, the
task that takes the caller's place after promotion, and the way back for messages before the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.delivery import Delivery
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.stateless import Envelope
from taskgate.core.joined_call import JoinedCall
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import NO_STATE, Answer, Question
from taskgate.core.tasks.task import Task
from taskgate.core.waterfall import Span, Waterfall
from taskgate.core.wire import Members, Message, Raw
from taskgate.gateway.requests.paced_progress import PacedProgress, with_caller_token
from taskgate.gateway.requests.question_round import QuestionRound
from taskgate.gateway.requests.session import Session, passes_log_level
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.outlet import ReplyOutlet


class PromotedTask(Protocol):
    """The task that a promoted call became, which takes the caller's place while the call continues."""

    def on_notification(self, method: str, params: Raw | None) -> None: ...

    async def ask(self, question: Question) -> Answer: ...

    async def ask_round(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        """Ask the questions of one round, which are stored together."""
        ...

    def server_waits(self, text: str | None) -> None:
        """Note that the server waits for an answer to a question that is not tied to a call; None when it no longer does."""
        ...

    async def refused(self) -> None:
        """Record that the last send was provably not executed."""
        ...

    async def sends_again(self) -> None:
        """Record that the call is about to be sent again. Raises if it may not be."""
        ...

    async def next_round(self, params: Members, state: bytes | None) -> None:
        """Record that the next round is about to be sent. Raises if it may not be."""
        ...


class StartTimer(Protocol):
    """The promotion of a call, which does not count the time in which the program of its server starts."""

    def server_starts(self) -> None: ...

    async def server_started(self) -> None:
        """The call may be sent. If it is being promoted, its task sends it, and this request ends here."""
        ...


class ReplyDelivery(msgspec.Struct, eq=False, weakref=True):
    """The delivery state of one request.

    Implements `SendLog`, to report sends to the task that the call became, and `CallSide`, to pass on questions that a server did
    not tie to a call.
    """

    outlet: ReplyOutlet
    message_id: bytes | None
    session: Session | None
    envelope: Envelope | None
    inbox: bool
    """Whether questions that the caller does not support may wait in its inbox."""
    carrier: asyncio.Task[Any] | None = None
    """The task that handles the request, if the transport named it."""
    promoted_task: PromotedTask | None = None
    promoting: asyncio.Task[None] | None = None
    """The promotion of the call, running or ended."""
    answered: bool = False
    sent: bool = False
    """Whether anything was passed to a server's link or stored as a task. Before that, the call cannot have been executed."""
    counted_in: set[ReplyDelivery] | None = None
    also_in: tuple[set[ReplyDelivery], ...] = ()
    """The sets of open calls that this one is counted in."""
    mode: Delivery | None = None
    hand_over: Callable[[Task, float], bytes] | None = None
    on_delivered: Callable[[bool], None] | None = None
    span: Span | None = None
    open_question: Callable[[], str | None] | None = None
    """Returns a sentence on the question that waits in the caller's inbox."""
    joined: JoinedCall | None = None
    """The equal call that this one joined."""
    waits_text: str | None = None
    """What the server waits for, if the question was asked elsewhere."""
    server_state: bytes | None = None
    """The state of a stateless server, to be returned with the answers to its questions."""
    question_round: QuestionRound | None = None
    known_profile: ClientProfile | None = None
    progress: PacedProgress | None = None
    last_progress: Raw | None = None
    """The last progress notification of the server."""
    asked: bool = False
    """Whether the server asked a question during the call."""
    start_timer: StartTimer | None = None
    large_members: tuple[Message, Members] | None = None
    """The members of large params and the message that has them: splitting them takes milliseconds."""

    def begin(self, method: str, params: Mapping[str, Any], principal: str, waterfall: Waterfall) -> Span:
        """Open the span of the request in the waterfall."""
        name = params.get("name") or params.get("uri") or params.get("taskId")
        shown = name[:120] if type(name) is str else ""
        span = Span(
            number=waterfall.next_number(),
            parent=0,
            kind="request",
            method=method,
            name=shown,
            server="",
            caller=principal,
            start=clock.wall(),
            began=clock.monotonic(),
        )
        self.span = span
        waterfall.add(span)
        return span

    def begin_sending(self, method: str, name: str, server: str, principal: str, waterfall: Waterfall) -> Span:
        """The request is about to be passed to a server's link. Open the span of that call."""
        self.sent = True
        number, parent = waterfall.next_number(), self.span.number if self.span is not None else 0
        span = Span(
            number=number,
            parent=parent,
            kind="upstream",
            method=method,
            name=name,
            server=server,
            caller=principal,
            start=clock.wall(),
            began=clock.monotonic(),
        )
        waterfall.add(span)
        return span

    def members_of(self, message: Message, params: Raw) -> Members:
        """Split the large params of this message once."""
        if self.large_members is None or self.large_members[0] is not message:
            self.large_members = message, wire.members_of(params)
        return self.large_members[1]

    def carrier_task(self) -> asyncio.Task[Any]:
        """The task that handles the request: the one that the transport named, or else the current one."""
        if self.carrier is None:
            self.carrier = asyncio.current_task()
        assert self.carrier is not None
        return self.carrier

    def mark_asked(self) -> None:
        self.asked = True

    def mark_accepted(self, task_id: str) -> None:
        """The call is stored as a task, which runs whether or not this request is answered."""
        self.sent = True
        if self.span is not None:
            self.span.belongs_to(task_id)

    def count_in(self, inside: set[ReplyDelivery]) -> None:
        inside.add(self)
        self.counted_in = inside

    def use_inbox(self) -> None:
        self.inbox = True

    def set_mode(self, mode: Delivery, hand_over: Callable[[Task, float], bytes]) -> None:
        """Set how long to wait for the result, and the reply for a call that becomes a task instead."""
        self.mode, self.hand_over = mode, hand_over

    def times_start(self, timer: StartTimer | None) -> None:
        self.start_timer = timer

    def set_joined(self, joined: JoinedCall) -> None:
        self.joined = joined

    def set_open_question(self, question: Callable[[], str | None]) -> None:
        self.open_question = question

    def waiting_text(self) -> str | None:
        """What the call waits for besides the server's work, for the caller."""
        own = self.open_question() if self.open_question is not None else None
        return own or self.waits_text

    def can_carry(self, question: Question) -> bool:
        """As `CallSide`: whether a stateful caller can be asked on the stream of this reply. A stateless one cannot."""
        session = self.session
        if session is None or session.closed or self.answered or self.is_promoted:
            return False
        reached = self.outlet.can_send and self.outlet.still_there
        return reached and can_answer(session.capabilities, question.method, question.decoded())

    def can_keep(self) -> bool:
        return self.promoted_task is not None

    def server_waits(self, text: str | None) -> None:
        self.waits_text = text
        if self.promoted_task is not None:
            self.promoted_task.server_waits(text)

    def when_delivered(self, hook: Callable[[bool], None]) -> None:
        self.on_delivered = hook

    def keep_state(self, state: Raw | None) -> None:
        """Keep the state that a stateless server returned with its questions."""
        self.server_state = bytes(state) if state is not None else NO_STATE

    def begin_round(self, asked: Mapping[str, Question], state: Raw | None) -> QuestionRound:
        """A stateless server returned questions."""
        self.mark_asked()
        self.keep_state(state)
        assert self.server_state is not None
        self.question_round = QuestionRound(self.server_state, asked)
        return self.question_round

    def note_answer(self, question: Question, answer: Answer) -> None:
        """Note the answer to a question of this call before it is acknowledged."""
        if self.question_round is not None and question.key is not None:
            self.question_round.note_answer(question.key, answer)

    async def keep_answer(self, question: Question, answer: Answer) -> None:
        """Store the answer if the call is a task or is being promoted. It may be acknowledged when this returns."""
        self.note_answer(question, answer)
        await self.wait_promoted()
        if self.question_round is not None and self.question_round.store is not None:
            await self.question_round.store()

    def promotion_began(self, work: asyncio.Task[None]) -> None:
        self.promoting = work

    @property
    def is_promoted(self) -> bool:
        """Whether the call has become a task or is being promoted."""
        return self.promoted_task is not None or (self.promoting is not None and not self.promoting.done())

    def promoted_to(self, task: PromotedTask, task_id: str) -> None:
        self.promoted_task = task
        if self.span is not None:
            self.span.belongs_to(task_id)

    async def wait_promoted(self) -> PromotedTask | None:
        """Wait for a promotion in progress and return the task, or None if the call is no task.

        Without the wait, a question could be sent to a caller that gets a task handle at the same moment.
        """
        if self.promoting is not None:
            await asyncio.shield(self.promoting)
        return self.promoted_task

    async def refused(self) -> None:
        """As `SendLog`: the sends of a plain call matter only once it has become a task."""
        promoted_task = await self.wait_promoted()
        if promoted_task is not None:
            await promoted_task.refused()

    async def sends_again(self) -> None:
        promoted_task = await self.wait_promoted()
        if promoted_task is not None:
            await promoted_task.sends_again()

    @property
    def pace(self) -> PacedProgress:
        """The progress of the caller, created with the first update."""
        if self.progress is None:
            self.progress = PacedProgress(lambda params: self.notify("notifications/progress", params))
        return self.progress

    def report_progress(self, params: Raw, token: Raw | None) -> None:
        """Pass an update of the server on under the caller's token, and keep it for the task that the call may become."""
        self.last_progress = params
        update = with_caller_token(params, token) if token is not None else None
        if update is not None:
            self.pace.offer(*update)

    async def answer_early(self, result: bytes) -> None:
        """Send the reply now, while the call continues. A disconnect of the caller no longer ends it."""
        assert self.message_id is not None
        await self._finish_early(200, wire.success(self.message_id, result))

    async def fail_early(self, problem: TaskgateError, status: int, body: bytes) -> None:
        """The same with an error. `status` and `body`: its response."""
        await self._finish_early(status, body)

    async def _finish_early(self, status: int, body: bytes) -> None:
        assert self.message_id is not None
        self.answered = True
        self.end_call()
        if self.span is not None:
            self.span.over("promoted", clock.monotonic())
        if self.session is not None:
            self.session.end(self.message_id)
        try:
            await self.outlet.finish(status, body)
        finally:
            self.delivered(self.outlet.still_there)

    def count_among(self, others: set[ReplyDelivery]) -> None:
        """Count this call among the open calls of its caller or tenant."""
        others.add(self)
        self.also_in += (others,)

    def end_call(self) -> None:
        """The call is answered: it no longer counts as open, and held progress is sent before the reply."""
        if self.counted_in is not None:
            self.counted_in.discard(self)
        if self.also_in:
            for others in self.also_in:
                others.discard(self)
        if self.progress is not None:
            self.progress.end()

    def delivered(self, arrived: bool) -> None:
        """The reply was passed to the transport, or could not be."""
        hook, self.on_delivered = self.on_delivered, None
        if hook is not None:
            hook(arrived)

    @property
    def profile(self) -> ClientProfile:
        """What the gateway declares to servers on behalf of this caller."""
        if self.session is not None:
            return self.session.profile
        if self.known_profile is None:
            assert self.envelope is not None
            envelope = self.envelope
            self.known_profile = ClientProfile(
                envelope.capabilities, envelope.client_info, envelope.log_level, self.inbox
            )
        return self.known_profile

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification on the stream of the reply. After the reply it goes to the session, unless it is progress."""
        body = bytes(params) if params is not None else None
        if self.outlet.can_send or self.session is None:
            self.outlet.send(wire.notification(method, body))
        elif method != "notifications/progress":
            self.session.notify(method, body)

    def accepts_log(self, level: str) -> bool:
        """Whether the caller gets a log message of this level. A stateless caller must request it with the call."""
        if self.session is not None:
            return self.session.accepts_log(level)
        assert self.envelope is not None
        return self.envelope.log_level is not None and passes_log_level(level, self.envelope.log_level)
