"""Calls that are made in several rounds, and spans around requests where tracing is on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, GatewayFault, TaskgateError, UpstreamError
from taskgate.core.questions import (
    CANCELLED,
    ELICIT,
    NO_STATE,
    ROOTS,
    SAMPLE,
    Answer,
    Question,
    bare_params,
    can_answer,
    spec_shapes,
)
from taskgate.core.tasks.task import Task
from taskgate.core.wire import META, Members, Raw, meta_of, with_meta
from taskgate.gateway.questions.elicitations import UrlElicitations
from taskgate.gateway.requests.delivery import StandIn
from taskgate.gateway.requests.replies import text_of
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import (
    CallFailed,
    ErrorReply,
    InputRequired,
    Link,
    RelayedError,
    Reply,
    Result,
    Upstream,
    UpstreamCall,
)

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

# Calls that are made in several rounds, in either direction of the translation between generations.

MAX_ROUNDS: Final = 32

GoOn = Callable[[Reply, int], Awaitable[Members | None]]
"""Given a reply and the number of its round: the params of the next round, or None if the reply is the end."""
Send = Callable[[Members, int], Awaitable[Reply]]


async def in_rounds(server: str, reply: Reply, go_on: GoOn, send: Send, *, number: int = 1) -> Reply:
    """The last reply of a call whose round `number` was answered with `reply`."""
    while True:
        params = await go_on(reply, number)
        if params is None:
            return reply
        if number > MAX_ROUNDS:
            raise in_part(server, f"asked for more input {MAX_ROUNDS} times in one call")
        number += 1
        reply = await send_round(send, params, number)


async def send_round(send: Send, params: Members, number: int) -> Reply:
    try:
        return await send(params, number)
    except CallFailed as failure:
        if number == 1:
            raise
        raise failure.in_round(number) from None


def questions_of(server: str, reply: InputRequired) -> dict[str, Question]:
    """What the server asks. One that wants to be called again without asking anything would be called again for ever."""
    if not reply.requests:
        raise in_part(server, "wants more input and does not say which")
    return {key: question_in(raw, server, key) for key, raw in reply.requests.items()}


def kept_state(reply: InputRequired) -> bytes:
    return bytes(reply.state) if reply.state is not None else NO_STATE


def next_params(params: Members, answers: Mapping[str, Raw], state: Raw | None) -> Members:
    """The same call again, with answers and the state that the server gave us to keep."""
    again = {**params, "inputResponses": wire.raw(dict(answers))}
    again.pop("requestState", None)
    return again if state is None else {**again, "requestState": state}


def in_part(server: str, why: str) -> UpstreamError:
    text = f"The server {server} {why}. The call was stopped; what it did so far may have taken effect."
    return UpstreamError("upstream_protocol", text, executed=Executed.MAYBE)


def question_in(raw: Raw, server: str, key: str | None = None) -> Question:
    """A question as it stands inside a stateless result."""
    members = wire.members_of(raw)
    method, params = text_of(members.get("method")) or "", members.get("params")
    return Question(method, spec_shapes(params) if method == SAMPLE else params, server, key=key)


def usable(question: Question, answer: Answer) -> Raw:
    """An answer as a stateless server reads it. It knows no error there, so a refusal becomes the nearest thing to no."""
    if answer.result is not None:
        return bare_params(Raw(answer.result))
    return _REFUSED.get(question.method, Raw(b"{}"))


_REFUSED: Final = {ELICIT: Raw(b'{"action":"cancel"}'), ROOTS: Raw(b'{"roots":[]}')}


# Calls of stateless callers that wait inside a stateful server for an answer.
#
# The upstream call keeps running while the caller goes away with `input_required` and comes back with answers. Each
# such call is held in memory under a random name, bound to its principal, and has an end: when nobody comes back, the
# questions are answered with `cancel` and the call is dropped. It cannot survive a restart of the gateway, because the
# upstream's question cannot.

AskOtherwise = Callable[[Request, Question], Awaitable[Answer]]
"""Answers what the caller itself cannot be asked."""

Refusal = Callable[[Question], Answer | None]
"""What a server gets of a request that nobody is asked; None where somebody is."""

HOLD_S: Final = 600.0
MAX_HELD: Final = 10_000
"""What stands behind the name of the gateway that holds a call, in the call's id."""
GATHER_S: Final = 0.005
"""A tool may ask several things at once; they belong into one round."""


@dataclass(slots=True)
class SuspendedCall:
    id: str
    principal: str
    request: Request | None
    work: asyncio.Task[Reply] | None = None
    asked: dict[str, tuple[Question, asyncio.Future[Answer]]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    rounds: int = 0
    expiry: asyncio.TimerHandle | None = None

    # As `CallSide`: a question can go into the result of a request that is open.

    def can_carry(self, question: Question) -> bool:
        request = self.request
        if request is None or request.delivery.is_promoted:
            return False
        return can_answer(request.capabilities, question.method, question.decoded())

    def can_keep(self) -> bool:
        """Its caller comes back with answers to what it was asked before, or the call has become a task."""
        return self.request is None or self.request.delivery.can_keep()

    def server_waits(self, text: str | None) -> None:
        if self.request is not None:
            self.request.delivery.server_waits(text)


class SuspendedCalls:
    def __init__(self, urls: UrlElicitations, ask_otherwise: AskOtherwise, refusal: Refusal, home: str) -> None:
        """`home`: under which name other gateways know this one, so that they bring back who comes to them; or nothing."""
        self.home = home
        self._urls = urls
        self._ask_otherwise = ask_otherwise
        self._refusal = refusal
        self._held: dict[str, SuspendedCall] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def run(self, request: Request, link: Link, outgoing: UpstreamCall) -> Reply:
        """Start the call and wait for its result or its first questions."""
        if len(self._held) >= MAX_HELD:
            raise GatewayFault("overloaded", "Too many calls wait for answers; try again later.", retry_after_s=30)
        held = SuspendedCall(secrets.token_urlsafe(16), request.caller.principal, request)
        relay_down = outgoing.on_notification
        outgoing = msgspec.structs.replace(
            outgoing,
            on_notification=lambda method, params: relay_down(method, params) if held.request else None,
            on_question=lambda question: self._ask(held, question),
            side=held,
        )
        held.work = asyncio.get_running_loop().create_task(link.request(outgoing))
        return await self._round(held)

    async def resume(self, request: Request, held_id: str) -> Reply:
        """The caller is back with answers; unknown keys are ignored, missing ones are asked again (MRTR)."""
        held: SuspendedCall | None = self._held.pop(held_id, None)
        if held is None or held.principal != request.caller.principal:
            text = "The call that asked is no longer waiting. What it did before it asked may have taken effect."
            raise CallerError("invalid_params", text)
        if held.expiry is not None:
            held.expiry.cancel()
        held.request = request
        given = request.params.get("inputResponses")
        if type(given) is dict:
            raw = wire.members_of(wire.members_of(request.message.raw_params or b"{}")["inputResponses"])
            for key in list(held.asked):
                if key in raw:
                    _question, future = held.asked.pop(key)
                    if not future.done():
                        future.set_result(Answer(result=bytes(bare_params(raw[key]))))
        return await self._round(held)

    async def _ask(self, held: SuspendedCall, question: Question) -> Answer:
        refusal = self._refusal(question)
        if refusal is not None:
            return refusal
        request = held.request
        stand_in = await request.delivery.promoted() if request is not None else None
        if stand_in is not None:
            # The call became a task while it ran: its questions are the task's now.
            return await stand_in.ask(question)
        if request is not None and not can_answer(request.capabilities, question.method, question.decoded()):
            return await self._ask_otherwise(request, question)
        refused = self._urls.refusal(held.principal, question)
        if refused is not None:
            return refused
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        held.rounds += 1
        held.asked[f"q{held.rounds}"] = (question, answer)
        held.news.set()
        return await answer

    async def _round(self, held: SuspendedCall) -> Reply:
        assert held.work is not None
        try:
            if not held.asked:
                news = asyncio.ensure_future(held.news.wait())
                try:
                    await asyncio.wait((held.work, news), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
            if not held.work.done():
                await clock.sleep(GATHER_S)
        except asyncio.CancelledError:
            # Closing the stream of an open request cancels it in this generation.
            held.work.cancel()
            raise
        if held.work.done():
            return held.work.result()
        stand_in = await held.request.delivery.promoted() if held.request is not None else None
        return self._suspend(held) if stand_in is None else await self._as_a_task(held, held.work, stand_in)

    async def _as_a_task(self, held: SuspendedCall, work: asyncio.Task[Reply], stand_in: StandIn) -> Reply:
        """The call became a task while its questions were being gathered: the task asks them, and the call goes on."""
        asking = [asyncio.ensure_future(_hand_over(stand_in, *asked)) for asked in held.asked.values()]
        held.asked.clear()
        try:
            return await work
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _suspend(self, held: SuspendedCall) -> InputRequired:
        held.request = None
        held.news.clear()
        self._held[held.id] = held
        held.expiry = asyncio.get_running_loop().call_later(HOLD_S, self._give_up, held)
        requests = {key: Raw(wire.encode(_embedded(question))) for key, (question, _) in held.asked.items()}
        raw = wire.encode({"resultType": "input_required", "inputRequests": requests})
        return InputRequired(requests, wire.raw(held.id), raw)

    def _give_up(self, held: SuspendedCall) -> None:
        """Nobody came back. The server gets an answer, so that it can end its work properly."""
        if self._held.pop(held.id, None) is None:
            return
        for _question, future in held.asked.values():
            if not future.done():
                future.set_result(CANCELLED)
        if held.work is not None:
            held.work.add_done_callback(_consume)

    async def close(self) -> None:
        for held in list(self._held.values()):
            if held.expiry is not None:
                held.expiry.cancel()
            if held.work is not None:
                held.work.cancel()
        works = [held.work for held in self._held.values() if held.work is not None]
        self._held.clear()
        await asyncio.gather(*works, return_exceptions=True)


async def _hand_over(stand_in: StandIn, question: Question, answer: asyncio.Future[Answer]) -> None:
    given = await stand_in.ask(question)
    if not answer.done():
        answer.set_result(given)


def _embedded(question: Question) -> dict[str, object]:
    return {"method": question.method, "params": bare_params(question.params, drop=("elicitationId",))}


def _consume(work: asyncio.Task[Reply]) -> None:
    if not work.cancelled():
        work.exception()


# Requests under observation: the same use cases, with a span around each and around each call to a server.
#
# Only entered where tracing is switched on. What a span is made of is `telemetry.tracing`'s business.


class Told(Protocol):
    """What an answer says of its outcome."""

    @property
    def error_type(self) -> str: ...


Answered = TypeVar("Answered", bound=Told)
Headers = tuple[tuple[bytes, bytes], ...]


async def answer_traced(
    tracing: Tracing, answer: Callable[[Request], Awaitable[Answered | None]], request: Request
) -> Answered | None:
    params, session = request.params, request.session
    target = params.get("name") or params.get("uri")
    more = {"jsonrpc.request.id": (request.message.id or b"").decode("utf-8", "replace").strip('"')}
    if session is not None:
        more["mcp.session.id"] = session.id
        more["mcp.protocol.version"] = session.version
    elif request.envelope is not None:
        more["mcp.protocol.version"] = request.envelope.version
    with tracing.serving(
        request.message.method,
        target[:120] if type(target) is str else "",
        meta_of(request.message.params),
        request.headers,
        more,
    ) as outcome:
        reply = await answer(request)
        if reply is not None and reply.error_type:
            outcome.failed(reply.error_type)
        return reply


async def carry_traced(
    tracing: Tracing,
    carry: Callable[[Request, Upstream, UpstreamCall], Awaitable[bytes]],
    request: Request,
    upstream: Upstream,
    call: UpstreamCall,
) -> bytes:
    with tracing.calling(call.method, call.name, upstream.id) as (outcome, context):
        traced = replace(call, params=_along(call.params, context), trace=_headers(context))
        try:
            result = await carry(request, upstream, traced)
        except RelayedError as error:
            outcome.failed(str(error.code), error.code)
            raise
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if b'"isError":true' in result:
            outcome.failed("tool_error")
        return result


async def run_traced(
    tracing: Tracing, task: Task, params: Members, send: Callable[[Members, Headers], Awaitable[Reply]]
) -> Reply:
    """One attempt of a task. Its trace is that of the request that started the run or, where none did, its caller's."""
    kept = {key: wire.parse_strictly(bytes(value)) for key, value in params.items() if key == META}
    with tracing.calling("tools/call", task.tool, task.server, meta_of(kept)) as (outcome, context):
        try:
            reply = await send(_along(params, context), _headers(context))
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if isinstance(reply, ErrorReply):
            outcome.failed(str(reply.code), reply.code)
        elif isinstance(reply, Result) and b'"isError":true' in reply.raw:
            outcome.failed("tool_error")
        return reply


def _along(params: Members, context: Mapping[str, str]) -> Members:
    return with_meta(params, {key: wire.raw(value) for key, value in context.items()})


def _headers(context: Mapping[str, str]) -> Headers:
    """The same for whoever stands between us and a server over HTTP, and reads no bodies."""
    return tuple((key.encode("ascii"), value.encode("latin-1", "replace")) for key, value in context.items())
