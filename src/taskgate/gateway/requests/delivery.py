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
from taskgate.core.delivery import Delivery, JoinedCall
from taskgate.core.generations.stateless import Envelope
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import NO_STATE, Answer, Question
from taskgate.core.tasks.task import Task
from taskgate.core.waterfall import Span, Waterfall
from taskgate.core.wire import Members, Raw
from taskgate.gateway.requests.asked_round import AskedRound
from taskgate.gateway.requests.paced_progress import PacedProgress, readdressed
from taskgate.gateway.requests.session import Session, passes_log_level
from taskgate.ports.outlet import ReplyOutlet
from taskgate.ports.upstream import ClientProfile


class StandIn(Protocol):
    """Who takes over when the caller has its reply but the call goes on: the task that the call became."""

    def heard(self, method: str, params: Raw | None) -> None: ...

    async def ask(self, question: Question) -> Answer: ...

    def server_waits(self, text: str | None) -> None:
        """The server waits for an answer to a question that it did not tie to a call; None: not any more."""
        ...

    async def refused(self) -> None:
        """What was sent last is proven not to have been executed."""
        ...

    async def sends_again(self) -> None:
        """The same is about to be sent again. Raises if that may not be."""
        ...

    async def next_round(self, params: Members, state: bytes | None) -> None:
        """Its questions are answered: these are about to be sent. Raises if that may not be."""
        ...


class ReplyDelivery(msgspec.Struct, eq=False, kw_only=True):
    """Made with its request; one for each. As a `SendLog` it tells the task that the call became of its sends, as a `CallSide`
    it carries questions that a server did not tie to a call."""

    outlet: ReplyOutlet
    message_id: bytes | None
    session: Session | None
    envelope: Envelope | None
    inbox: bool
    """Questions that the caller cannot be asked may wait for it."""
    carrier: asyncio.Task[Any] | None = None
    """Who answers it, where the transport says so."""
    stand_in: StandIn | None = None
    promoting: asyncio.Task[None] | None = None
    """It is just becoming a task, or has tried to."""
    answered: bool = False
    sent: bool = False
    """Something of it was handed to an upstream's link, or it is a task; until then it cannot have been executed."""
    counted_in: set[ReplyDelivery] | None = None
    also_in: tuple[set[ReplyDelivery], ...] = ()
    """Those that are being answered, while this is one of them."""
    mode: Delivery | None = None
    hand_over: Callable[[Task, float], bytes] | None = None
    on_settled: Callable[[bool], None] | None = None
    span: Span | None = None
    open_question: Callable[[], str | None] | None = None
    """What the call waits for in its caller's inbox, as a sentence."""
    joined: JoinedCall | None = None
    """The equal call that it joined."""
    waits_text: str | None = None
    """What its server waits for, asked elsewhere."""
    asked_state: bytes | None = None
    """What a stateless server gave us to keep while its questions are open."""
    asked_round: AskedRound | None = None
    known_profile: ClientProfile | None = None
    progress: PacedProgress | None = None
    last_progress: Raw | None = None
    """What the server said last of how far it is."""

    def begin(self, method: str, params: Mapping[str, Any], principal: str, waterfall: Waterfall) -> Span:
        """It is being answered now."""
        name = params.get("name") or params.get("uri") or params.get("taskId")
        shown = name[:120] if type(name) is str else ""
        now, began = clock.wall(), clock.monotonic()
        span = self.span = waterfall.begin("request", method, shown, "", principal, now=now, began=began)
        return span

    def carried(self) -> asyncio.Task[Any]:
        """The task that answers it: the one the transport named, else the one that asks here first."""
        if self.carrier is None:
            self.carrier = asyncio.current_task()
        assert self.carrier is not None
        return self.carrier

    def is_sent(self) -> None:
        self.sent = True

    def is_accepted(self) -> None:
        """It is a task, which is sent whether or not this request is answered."""
        self.sent = True

    def use_inbox(self) -> None:
        self.inbox = True

    def deliver(self, mode: Delivery, hand_over: Callable[[Task, float], bytes]) -> None:
        """How long to wait for its result, and what the caller is told when it becomes a task instead."""
        self.mode, self.hand_over = mode, hand_over

    def join(self, joined: JoinedCall) -> None:
        self.joined = joined

    def waits_for(self, question: Callable[[], str | None]) -> None:
        self.open_question = question

    def waiting_text(self) -> str | None:
        """What the call waits for besides its server's work, to be reported to its caller."""
        own = self.open_question() if self.open_question is not None else None
        return own or self.waits_text

    def can_carry(self, question: Question) -> bool:
        """As `CallSide`: whether a stateful caller can be asked on the way of this reply. A stateless one cannot (see `rounds`)."""
        session = self.session
        if session is None or session.closed or self.answered or self.is_promoted:
            return False
        reached = self.outlet.can_send and self.outlet.still_there
        return reached and can_answer(session.capabilities, question.method, question.decoded())

    def can_keep(self) -> bool:
        return self.stand_in is not None

    def server_waits(self, text: str | None) -> None:
        self.waits_text = text
        if self.stand_in is not None:
            self.stand_in.server_waits(text)

    def when_settled(self, hook: Callable[[bool], None]) -> None:
        self.on_settled = hook

    def keep_state(self, state: Raw | None) -> None:
        """What a stateless server gave with its questions, to have it back with the answers."""
        self.asked_state = bytes(state) if state is not None else NO_STATE

    def asks(self, asked: Mapping[str, Question], state: Raw | None) -> AskedRound:
        """A stateless server answered with questions."""
        self.keep_state(state)
        assert self.asked_state is not None
        self.asked_round = AskedRound(self.asked_state, asked)
        return self.asked_round

    def note_answer(self, question: Question, answer: Answer) -> None:
        """Of a question that this call caused, in the moment it came: it is acknowledged next."""
        if self.asked_round is not None and question.key is not None:
            self.asked_round.answered(question.key, answer)

    async def keep_answer(self, question: Question, answer: Answer) -> None:
        """It is acknowledged when this returns: if the call is a task, or just becomes one, the answer is stored with it."""
        self.note_answer(question, answer)
        await self.promoted()
        if self.asked_round is not None and self.asked_round.keep is not None:
            await self.asked_round.keep()

    def becomes_a_task(self, work: asyncio.Task[None]) -> None:
        self.promoting = work

    @property
    def is_promoted(self) -> bool:
        """Whether the call has become a task, or is just becoming one."""
        return self.stand_in is not None or (self.promoting is not None and not self.promoting.done())

    def became(self, task: StandIn) -> None:
        self.stand_in = task

    async def promoted(self) -> StandIn | None:
        """Who is to be asked in the caller's place. If the call is just becoming a task, that is waited for: a question must
        not be answered to a caller that gets a handle in the same moment.
        """
        if self.promoting is not None:
            await asyncio.shield(self.promoting)
        return self.stand_in

    async def refused(self) -> None:
        """As `SendLog`: what concerns a plain call's sends is of interest only once it has become a task."""
        stand_in = await self.promoted()
        if stand_in is not None:
            await stand_in.refused()

    async def sends_again(self) -> None:
        stand_in = await self.promoted()
        if stand_in is not None:
            await stand_in.sends_again()

    @property
    def pace(self) -> PacedProgress:
        """How progress reaches the caller; made when there is some."""
        if self.progress is None:
            self.progress = PacedProgress(lambda params: self.notify("notifications/progress", params))
        return self.progress

    def progressed(self, params: Raw, token: Raw | None) -> None:
        """An update of the server's: for the caller under its own token, and for the task that the call may become."""
        self.last_progress = params
        update = readdressed(params, token) if token is not None else None
        if update is not None:
            self.pace.offer(*update)

    async def answer_early(self, result: bytes) -> None:
        """Send the reply now, while the call goes on. From here on losing the caller does not matter."""
        assert self.message_id is not None
        self.answered = True
        self.over()
        if self.span is not None:
            self.span.over("promoted", clock.monotonic())
        if self.session is not None:
            self.session.end(self.message_id)
        try:
            await self.outlet.finish(200, wire.success(self.message_id, result))
        finally:
            self.settled(self.outlet.still_there)

    def count_in(self, inside: set[ReplyDelivery]) -> None:
        inside.add(self)
        self.counted_in = inside

    def count_among(self, others: set[ReplyDelivery]) -> None:
        """Where calls of a caller or a tenant are limited, it is one of those."""
        others.add(self)
        self.also_in += (others,)

    def over(self) -> None:
        """It is answered: somebody else may come in, and what progress is held goes out before the reply, and none after it."""
        if self.counted_in is not None:
            self.counted_in.discard(self)
        for others in self.also_in:
            others.discard(self)
        if self.progress is not None:
            self.progress.end()

    def settled(self, arrived: bool) -> None:
        """The reply has been handed to the transport, or could not be."""
        hook, self.on_settled = self.on_settled, None
        if hook is not None:
            hook(arrived)

    @property
    def profile(self) -> ClientProfile:
        """What upstreams are told about this caller."""
        if self.session is not None:
            return self.session.profile
        if self.known_profile is None:
            assert self.envelope is not None
            info = self.envelope.client_info
            self.known_profile = ClientProfile(
                self.envelope.capabilities,
                Raw(wire.encode(info)) if info is not None else None,
                self.envelope.log_level,
                self.inbox,
            )
        return self.known_profile

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        """Before the reply on its own way; what comes too late for that, on the session's, unless it is about this request."""
        body = bytes(params) if params is not None else None
        if self.outlet.can_send or self.session is None:
            self.outlet.send(wire.notification(method, body))
        elif method != "notifications/progress":
            self.session.notify(method, body)

    def wants_log(self, level: str) -> bool:
        """Stateless callers get logs only if this very request asked for them (server/utilities/logging)."""
        if self.session is not None:
            return self.session.wants_log(level)
        assert self.envelope is not None
        return self.envelope.log_level is not None and passes_log_level(level, self.envelope.log_level)
