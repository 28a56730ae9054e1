"""One request from a caller, for as long as it is open: who asks, in which generation, and how to reach them meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from taskgate import clock
from taskgate.core import wire
from taskgate.core.activity.diagrams import Span, Waterfall
from taskgate.core.caller import ANONYMOUS, Caller
from taskgate.core.conversation_key import ConversationKey
from taskgate.core.delivery import Delivery
from taskgate.core.generations import PROGRESS_TOKEN, Generation
from taskgate.core.generations.stateless_2026 import CAPABILITIES, CLIENT_INFO, Envelope
from taskgate.core.meta import META, meta_of
from taskgate.core.questions import NO_STATE, Answer, Question
from taskgate.core.scoping.request import NO_WISH, SessionRequest
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members, Message, Raw
from taskgate.gateway.requests.progress import PacedProgress
from taskgate.gateway.requests.sessions import Session, passes_log_level
from taskgate.ports.outlet import ReplyOutlet
from taskgate.ports.upstream import ClientProfile, LinkKey

_NEVER = float("inf")
CLIENT_META: Final = "taskgate/client"
"""Under which key of `_meta` a stateless client says what it calls itself."""
NO_CONVERSATION: Final = "request:"
"""How the names begin under which requests without a conversation are kept."""
_STARTED: Final = secrets.token_hex(8)
_numbers = itertools.count(1)


class StandIn(Protocol):
    """Who takes over when the caller has its reply but the call goes on: the task that the call became."""

    def heard(self, method: str, params: Raw | None) -> None: ...

    async def ask(self, question: Question) -> Answer: ...

    async def refused(self) -> None:
        """What was sent last is proven not to have been executed."""
        ...

    async def sends_again(self) -> None:
        """The same is about to be sent again. Raises if that may not be."""
        ...

    async def next_round(self, params: Members, state: bytes | None) -> None:
        """Its questions are answered: these are about to be sent. Raises if that may not be."""
        ...


class AskedRound:
    """What a stateless server asked in one round of a call, and the answers that came so far."""

    __slots__ = ("answers", "asked", "keeping", "on_answer", "sent", "state")

    def __init__(self, state: bytes, asked: Mapping[str, Question]) -> None:
        self.state = state
        self.asked = asked
        self.answers: dict[str, Answer] = {}
        self.sent = False
        """The answers are on their way to the server."""
        self.on_answer: Callable[[], None] | None = None
        self.keeping = asyncio.Lock()

    def follow(self, on_answer: Callable[[], None]) -> None:
        """The call has become a task, which keeps every answer from here on."""
        self.on_answer = on_answer

    def answered(self, key: str, answer: Answer) -> None:
        if key in self.asked and key not in self.answers:
            self.answers[key] = answer
            if self.on_answer is not None:
                self.on_answer()

    def goes_out(self) -> None:
        self.sent = True


class Request:
    __slots__ = (
        "_own_key",
        "_pace",
        "_profile",
        "answered",
        "arrived",
        "asked_round",
        "asked_state",
        "caller",
        "carrier",
        "counted_in",
        "delivery_mode",
        "envelope",
        "generation",
        "hand_over",
        "headers",
        "inbox",
        "inner",
        "message",
        "narrowing",
        "on_settled",
        "open_question",
        "outlet",
        "params",
        "progress_token",
        "promoting",
        "sent",
        "session",
        "span",
        "stand_in",
        "vendor_id",
    )

    def __init__(
        self,
        message: Message,
        caller: Caller,
        outlet: ReplyOutlet,
        session: Session | None = None,
        envelope: Envelope | None = None,
        *,
        narrowing: SessionRequest = NO_WISH,
        headers: dict[bytes, bytes] | None = None,
        carrier: asyncio.Task[Any] | None = None,
        arrived: float = _NEVER,
        vendor_id: str | None = None,
    ) -> None:
        self.message = message
        self.params: dict[str, Any] = message.params or {}
        meta = self.params.get(META)
        token = meta.get(PROGRESS_TOKEN) if type(meta) is dict else None
        self.progress_token = Raw(wire.encode(token)) if type(token) in (str, int) else None
        """The caller's own token, exactly as written, or None if it does not want progress."""
        self.caller = caller
        self.outlet = outlet
        self.session = session
        self.envelope = envelope
        self.generation = Generation.STATEFUL if session is not None else Generation.STATELESS
        self.narrowing = session.narrowing if session is not None else narrowing
        self.headers = headers or {}
        self.carrier = carrier
        """Who answers it, where the transport says so."""
        self.stand_in: StandIn | None = None
        self.promoting: asyncio.Task[None] | None = None
        """It is just becoming a task, or has tried to."""
        self.answered = False
        self.sent = False
        """Something of it was handed to an upstream's link; until then it cannot have been executed."""
        self.arrived = arrived
        """When the whole of it had arrived, by the monotonic clock, where the transport knows."""
        self.counted_in: set[Request] | None = None
        """The calls that are being answered, while this is one of them."""
        self.inner = False
        """Made by one of our own tools on behalf of the caller."""
        self.inbox = session.profile.inbox if session is not None else False
        """Questions that the caller cannot be asked may wait for it."""
        self.vendor_id = vendor_id
        """Under which id the vendor method that made this call will know its task."""
        self.delivery_mode: Delivery | None = None
        self.hand_over: Callable[[Task, float], bytes] | None = None
        self.on_settled: Callable[[bool], None] | None = None
        self.span: Span | None = None
        self.open_question: Callable[[], str | None] | None = None
        """What the call waits for in its caller's inbox, as a sentence."""
        self.asked_state: bytes | None = None
        """What a stateless server gave us to keep while its questions are open."""
        self.asked_round: AskedRound | None = None
        """The questions of a stateless server that were answered last, or are open."""
        self._pace: PacedProgress | None = None
        self._profile: ClientProfile | None = None
        self._own_key = ""

    def begin(self, waterfall: Waterfall) -> Span:
        """It is being answered now."""
        params = self.params
        name = params.get("name") or params.get("uri") or params.get("taskId")
        shown = name[:120] if type(name) is str else ""
        span = waterfall.begin("request", self.message.method, shown, "", self.caller.principal, clock.wall())
        self.span = span
        return span

    def carried(self) -> asyncio.Task[Any]:
        """The task that answers it: the one the transport named, else the one that asks here first."""
        if self.carrier is None:
            self.carrier = asyncio.current_task()
        assert self.carrier is not None
        return self.carrier

    def is_sent(self) -> None:
        self.sent = True

    def use_inbox(self) -> None:
        self.inbox = True

    def deliver(self, delivery_mode: Delivery, hand_over: Callable[[Task, float], bytes]) -> None:
        """How long to wait for its result, and what the caller is told when it becomes a task instead."""
        self.delivery_mode, self.hand_over = delivery_mode, hand_over

    def waits_for(self, question: Callable[[], str | None]) -> None:
        self.open_question = question

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

    def becomes_a_task(self, work: asyncio.Task[None]) -> None:
        self.promoting = work

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
    def own_key(self) -> str:
        """A name that nobody else has: for a request that belongs to no conversation."""
        if not self._own_key:
            self._own_key = f"{NO_CONVERSATION}{_STARTED}-{next(_numbers)}"
        return self._own_key

    @property
    def caller_key(self) -> str:
        """Whose lists, events and inboxes these are: the principal's, or for anonymous callers their conversation's.

        An anonymous stateless caller that does not say which client it is has no conversation: what it starts is found by its
        unguessable id alone, and nobody else is told of it.
        """
        if self.caller.principal != ANONYMOUS:
            return self.caller.principal
        if self.session is not None:
            return self.session.key
        return self._client_label() or self.own_key

    @property
    def conversation_key(self) -> ConversationKey:
        """Which conversation of its caller it belongs to: what it causes is told there while that goes on."""
        if self.session is not None:
            return self.session.conversation
        label = self._client_label() if self.caller.principal != ANONYMOUS else ""
        return ConversationKey(self.caller_key, label)

    @property
    def asking_stream(self) -> str:
        """The name of the caller's conversation, for links to remember who has calls open on them."""
        if self.session is not None:
            return self.session.stream
        meta = self.params.get(META)
        if type(meta) is dict and CLIENT_META in meta:
            return self.conversation_key.stream
        # The usual plain call, in as few steps as may be.
        return self.own_key if self.caller.principal == ANONYMOUS else self.caller.principal

    def _client_label(self) -> str:
        """What a stateless client calls itself, or nothing."""
        client = meta_of(self.params).get(CLIENT_META)
        label = "".join(letter for letter in client[:200] if letter.isprintable()) if type(client) is str else ""
        return f"client:{label}" if label else ""

    def members(self) -> Members:
        raw = self.message.raw_params
        return wire.members_of(raw) if raw is not None else {}

    @property
    def pace(self) -> PacedProgress:
        """How progress reaches the caller; made when there is some."""
        if self._pace is None:
            self._pace = PacedProgress(lambda params: self.notify("notifications/progress", params))
        return self._pace

    async def answer_early(self, result: bytes) -> None:
        """Send the reply now, while the call goes on. From here on losing the caller does not matter."""
        assert self.message.id is not None
        self.answered = True
        self.over()
        if self.span is not None:
            self.span.over("promoted", clock.wall())
        if self.session is not None:
            self.session.end(self.message.id)
        try:
            await self.outlet.finish(200, wire.success(self.message.id, result))
        finally:
            self.settled(self.outlet.still_there)

    def count_in(self, inside: set[Request]) -> None:
        inside.add(self)
        self.counted_in = inside

    def over(self) -> None:
        """It is answered: somebody else may come in, and what progress is held goes out before the reply, and none after it."""
        if self.counted_in is not None:
            self.counted_in.discard(self)
        if self._pace is not None:
            self._pace.end()

    def settled(self, arrived: bool) -> None:
        """The reply has been handed to the transport, or could not be."""
        hook, self.on_settled = self.on_settled, None
        if hook is not None:
            hook(arrived)

    @property
    def client_name(self) -> str:
        info = (
            self.session.client_info
            if self.session is not None
            else (self.envelope.client_info if self.envelope else None)
        )
        name = (info or {}).get("name")
        return name if type(name) is str else ""

    @property
    def profile(self) -> ClientProfile:
        """What upstreams are told about this caller."""
        if self.session is not None:
            return self.session.profile
        if self._profile is None:
            assert self.envelope is not None
            info = self.envelope.client_info
            self._profile = ClientProfile(
                self.envelope.capabilities,
                Raw(wire.encode(info)) if info is not None else None,
                self.envelope.log_level,
                self.inbox,
            )
        return self._profile

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the caller itself declared."""
        if self.session is not None:
            return self.session.capabilities
        return self.envelope.capabilities if self.envelope is not None else {}

    @property
    def link_key(self) -> LinkKey:
        """A session has its own upstream conversations; stateless callers share one per principal and capabilities."""
        if self.session is not None:
            return self.session.link_key
        meta = wire.members_of(self.members()["_meta"])
        identity = bytes(meta.get(CAPABILITIES, Raw(b""))) + bytes(meta.get(CLIENT_INFO, Raw(b"")))
        told_apart = "caps-" + hashlib.sha256(identity).hexdigest()[:16]
        return LinkKey(Generation.STATELESS, self.caller.principal, told_apart, place=self.caller.place)

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        self.outlet.send(wire.notification(method, bytes(params) if params is not None else None))

    def wants_log(self, level: str) -> bool:
        """Stateless callers get logs only if this very request asked for them (server/utilities/logging)."""
        if self.session is not None:
            return self.session.wants_log(level)
        assert self.envelope is not None
        return self.envelope.log_level is not None and passes_log_level(level, self.envelope.log_level)
