"""Carry one request to an upstream and its reply back, in all four pairings of generations.

Same generation on both sides: bytes pass as they are. A stateful caller of a stateless server is asked each question as a request,
and the call is sent again with the answers. A stateless caller of a stateful server gets the questions as a result and comes
back; its call waits meanwhile (see `suspended`). Nothing here decides whether the call may be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.activity.waterfall import Waterfall
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import CACHEABLE, cached_privately, complete, strip_result
from taskgate.core.questions import ELICIT, Answer, Question, bare_params, can_answer
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events.events import ElicitationCompleted
from taskgate.gateway.events.hub import EventHub
from taskgate.gateway.questions.url_elicitations import COMPLETE, URL_REQUIRED, UrlElicitations
from taskgate.gateway.relay.rounds import in_rounds, next_params, question_in, questions_of
from taskgate.gateway.relay.suspended import SuspendedCalls
from taskgate.gateway.relay.traced import carry_traced
from taskgate.gateway.relay.upstream_call import Errand
from taskgate.gateway.requests.caller_keys import asking_stream
from taskgate.gateway.requests.progress import readdressed
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.ports.outlet import ResumableOutlet
from taskgate.ports.upstream import (
    CallFailed,
    ErrorReply,
    InputRequired,
    Link,
    RelayedError,
    Reply,
    Result,
    StreamNotice,
    UpstreamRequest,
    never_sent,
)

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

_OUR_FAULT: Final = frozenset({-32020, -32021, -32022})

Asker = Callable[[Request, Question], Awaitable[Answer]]


class Relay:
    def __init__(
        self,
        state_signer: RequestStateSigner,
        suspended: SuspendedCalls,
        urls: UrlElicitations,
        *,
        ask: Asker,
        ask_otherwise: Asker,
        waterfall: Waterfall,
        tracing: Tracing | None,
        events: EventHub,
    ) -> None:
        self._state_signer = state_signer
        self._suspended = suspended
        self._urls = urls
        self._ask = ask
        self._ask_otherwise = ask_otherwise
        self._waterfall = waterfall
        self._tracing = tracing
        self._events = events

    def carry(self, request: Request, errand: Errand) -> Awaitable[bytes]:
        """The result for the caller, in its generation; raises RelayedError for an upstream's own error."""
        if self._tracing is None:
            return self._carry(request, errand)
        return carry_traced(self._tracing, request, errand, self._carry)

    async def _carry(self, request: Request, errand: Errand) -> bytes:
        if request.generation is Generation.STATELESS and "requestState" in errand.params:
            return await self._next_round(request, errand)
        link = errand.upstream.common_link(request.generation) or await self._own_link(request, errand)
        same = link.generation is request.generation
        if not same and request.generation is Generation.STATELESS:
            return await self._hold(request, errand, link)
        reply = await self._send(request, errand, link)
        if type(reply) is Result:
            return reply.raw if same else strip_result(reply.raw, errand.method)
        if same:
            return self._same_generation(request, errand, await self._answered_for(request, errand, link, reply, 1))
        return await self._down_to_stateful(request, errand, link, reply)

    async def _own_link(self, request: Request, errand: Errand) -> Link:
        key = request.link_key
        link = errand.upstream.open_link(key)
        if link is not None:
            return link
        try:
            return await errand.upstream.link(key, request.profile)
        except UpstreamError as problem:
            raise never_sent(errand.upstream.id, problem) from None

    def _send(self, request: Request, errand: Errand, link: Link) -> Awaitable[Reply]:
        return self._recorded(request, errand, link.request(self._outgoing(request, errand)))

    async def _recorded(self, request: Request, errand: Errand, call: Awaitable[Reply]) -> Reply:
        """Wait for the reply; the waterfall shows when the call to the upstream began and ended."""
        request.is_sent()
        parent = request.span.number if request.span is not None else 0
        span = self._waterfall.begin(
            "upstream", errand.method, errand.name, errand.upstream.id, request.caller.principal, clock.wall(), parent
        )
        state = "error"
        try:
            reply = await call
            state = "ok" if type(reply) is not ErrorReply else "error"
            return reply
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            span.over(state, clock.wall())

    def _outgoing(self, request: Request, errand: Errand) -> UpstreamRequest:
        return UpstreamRequest(
            errand.method,
            errand.params,
            request.profile,
            errand.timeout_s,
            lambda method, params: self._heard(request, errand.upstream.id, method, params),
            lambda question: self._put(request, question),
            name=errand.name,
            wants_progress=request.progress_token is not None,
            keep_envelope=request.generation is Generation.STATELESS,
            headers=errand.headers,
            asker=asking_stream(request),
            trace=errand.trace,
            send_log=request,
            on_stream=lambda news, retry_ms: streamed(request, news, retry_ms),
        )

    def _heard(self, request: Request, server: str, method: str, params: Raw | None) -> None:
        if method == COMPLETE:
            self._events.publish(ElicitationCompleted(server, params, request))
        else:
            heard(request, method, params)

    async def _put(self, request: Request, question: Question) -> Answer:
        if request.stand_in is not None:
            return await request.stand_in.ask(question)
        return await self._ask(request, question)

    def _same_generation(self, request: Request, errand: Errand, reply: Reply) -> bytes:
        if isinstance(reply, InputRequired):
            return self._pass_questions(request, errand, reply)
        self._judge_error(request, errand, reply)
        return unwrap(reply)

    def _judge_error(self, request: Request, errand: Errand, reply: Reply) -> None:
        if isinstance(reply, ErrorReply) and reply.code == URL_REQUIRED:
            self._urls.judge_error(request.caller.principal, errand.upstream.id, reply.raw, request.session)

    def _pass_questions(self, request: Request, errand: Errand, reply: InputRequired) -> bytes:
        """Both sides are stateless: the questions pass, and the upstream's state travels inside ours."""
        if b'"url"' in reply.raw:
            asked = (question_in(raw, errand.upstream.id) for raw in reply.requests.values())
            urls = [question.decoded() for question in asked if question.method == ELICIT]
            self._urls.admit_all(
                request.caller.principal, errand.upstream.id, [u for u in urls if u.get("mode") == "url"]
            )
        if reply.state is None:
            return reply.raw
        members = wire.members_of(reply.raw)
        state = text_of(reply.state) or ""
        members["requestState"] = wire.raw(self._closed(request, errand, "relay", state))
        return wire.join(members)

    def _closed(self, request: Request, errand: Errand, kind: str, body: str) -> str:
        return self._state_signer.close(
            kind, request.caller.principal, errand.method, errand.name, errand.upstream.id, body
        )

    async def _next_round(self, request: Request, errand: Errand) -> bytes:
        """A stateless caller comes back with answers."""
        state = self._state_signer.open(
            text_of(errand.params["requestState"]), request.caller.principal, errand.method, errand.name
        )
        if state.server != errand.upstream.id:
            raise CallerError("invalid_params", "The requestState belongs to another call.")
        if state.kind == "held":
            return self._finish_held(request, errand, await self._suspended.resume(request, state.body))
        params = {key: value for key, value in errand.params.items() if key != "requestState"}
        request.keep_state(errand.params["requestState"])
        if state.kind == "relay":
            params["requestState"] = wire.raw(state.body)
        else:
            params.pop("inputResponses", None)
        errand.resume(params)
        try:
            link = await self._own_link(request, errand)
            if link.generation is Generation.STATEFUL:
                return await self._hold(request, errand, link)
            reply = await self._send(request, errand, link)
        except CallFailed as failure:
            # The caller brings answers to an earlier round, which has run.
            raise failure.in_round(2) from None
        return self._same_generation(request, errand, await self._answered_for(request, errand, link, reply, 2))

    async def _answered_for(self, request: Request, errand: Errand, link: Link, reply: Reply, number: int) -> Reply:
        """Both sides are stateless: questions that the caller did not say it can answer are put to its inbox (or to the
        task that the call became), and the call is sent again with the answers.
        """

        async def go_on(reply: Reply, _number: int) -> Members | None:
            if not isinstance(reply, InputRequired):
                return None
            stand_in = await request.promoted()
            if stand_in is None and not reply.requests:
                # The caller itself calls again, and knows how often.
                return None
            asked = questions_of(link.server, reply)
            request.keep_state(reply.state)
            foreign = {key: question for key, question in asked.items() if not self._native(request, question)}
            if not foreign:
                return None
            answers = await asyncio.gather(*(self._put_foreign(request, question) for question in foreign.values()))
            return next_params(errand.params, _given(foreign, answers), reply.state)

        return await in_rounds(link.server, reply, go_on, self._sender(request, errand, link), number=number)

    def _sender(self, request: Request, errand: Errand, link: Link) -> Callable[[Members, int], Awaitable[Reply]]:
        """Sends one of the later rounds; if the call has become a task, its intent is written first."""

        async def send(params: Members, _number: int) -> Reply:
            errand.resume(params)
            stand_in = await request.promoted()
            if stand_in is not None:
                await stand_in.next_round(params, request.asked_state)
            return await self._send(request, errand, link)

        return send

    def _native(self, request: Request, question: Question) -> bool:
        return request.stand_in is None and can_answer(request.capabilities, question.method, question.decoded())

    async def _put_foreign(self, request: Request, question: Question) -> Answer:
        if request.stand_in is not None:
            return await request.stand_in.ask(question)
        return await self._ask_otherwise(request, question)

    async def _hold(self, request: Request, errand: Errand, link: Link) -> bytes:
        """A stateless caller of a stateful server: the call may have to outlive this request."""
        errand.params.pop("task", None)
        outcome = await self._recorded(
            request, errand, self._suspended.run(request, link, self._outgoing(request, errand))
        )
        return self._finish_held(request, errand, outcome)

    def _finish_held(self, request: Request, errand: Errand, outcome: Reply) -> bytes:
        if isinstance(outcome, InputRequired):
            body = text_of(outcome.state) or ""
            members = wire.members_of(outcome.raw)
            members["requestState"] = wire.raw(self._closed(request, errand, "held", body))
            return wire.join(members)
        if isinstance(outcome, ErrorReply) and outcome.code == URL_REQUIRED:
            return self._url_first(request, errand, outcome)
        return up_to_stateless(unwrap(outcome), errand.method)

    def _url_first(self, request: Request, errand: Errand, reply: ErrorReply) -> bytes:
        """A stateful server wants URLs opened before it goes on: ask, and call it again on the next round."""
        self._urls.judge_error(request.caller.principal, errand.upstream.id, reply.raw, None)
        error = wire.parse_strictly(reply.raw)
        asked = (error.get("data") or {}).get("elicitations") if type(error.get("data")) is dict else None
        if type(asked) is not list or not asked:
            raise RelayedError(wire.encode({**error, "code": -32602}), -32602)
        requests = {
            f"url-{number}": {
                "method": ELICIT,
                "params": {key: value for key, value in item.items() if key not in ("elicitationId", "_meta")},
            }
            for number, item in enumerate(asked)
            if type(item) is dict
        }
        return wire.encode(
            {
                "resultType": "input_required",
                "inputRequests": requests,
                "requestState": self._closed(request, errand, "again", ""),
            }
        )

    async def _down_to_stateful(self, request: Request, errand: Errand, link: Link, reply: Reply) -> bytes:
        """A stateful caller of a stateless server: drive the rounds while the caller's request stays open."""

        async def go_on(reply: Reply, _number: int) -> Members | None:
            if not isinstance(reply, InputRequired):
                return None
            asked = questions_of(link.server, reply)
            request.keep_state(reply.state)
            answers = await asyncio.gather(*(self._put(request, question) for question in asked.values()))
            return next_params(errand.params, _given(asked, answers), reply.state)

        reply = await in_rounds(link.server, reply, go_on, self._sender(request, errand, link))
        self._judge_error(request, errand, reply)
        return strip_result(unwrap(reply, hide=_OUR_FAULT), errand.method)


def _given(asked: Mapping[str, Question], answers: Sequence[Answer]) -> dict[str, Raw]:
    return {
        key: _usable_answer(question, answer) for (key, question), answer in zip(asked.items(), answers, strict=True)
    }


def streamed(request: Request, news: StreamNotice, retry_ms: int | None) -> None:
    """An upstream that lets its stream be resumed has a caller who can resume ours."""
    outlet = request.outlet
    if request.session is None or request.answered or not isinstance(outlet, ResumableOutlet):
        return
    if news is StreamNotice.PRIMED:
        outlet.prime(retry_ms)
    else:
        outlet.pause()


def heard(request: Request, method: str, params: Raw | None) -> None:
    """A notification that belongs to this request: hand it down with the caller's own token, if it is wanted."""
    if request.stand_in is not None:
        request.stand_in.heard(method, params)
        return
    if method == "notifications/progress":
        token = request.progress_token
        if token is None or params is None:
            return
        update = readdressed(params, token)
        if update is not None:
            request.pace.offer(*update)
        return
    if method == "notifications/message" and not request.wants_log(_level_of(params)):
        return
    request.notify(method, params)


def _level_of(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"


def _usable_answer(question: Question, answer: Answer) -> Raw:
    if answer.result is not None:
        return bare_params(Raw(answer.result))
    if question.method == ELICIT:
        return Raw(b'{"action":"cancel"}')
    text = (
        f"The call needs an answer to {question.method}, which was refused. What it did before may have taken effect."
    )
    raise CallerError("input_refused", text, executed=Executed.MAYBE)


def unwrap(reply: Reply, hide: frozenset[int] = frozenset()) -> bytes:
    if isinstance(reply, ErrorReply):
        if reply.code in hide:
            error = wire.parse_strictly(reply.raw)
            raise RelayedError(wire.encode({**error, "code": -32603}), -32603)
        raise RelayedError(reply.raw, reply.code)
    return reply.raw


def up_to_stateless(result: bytes, method: str) -> bytes:
    """A stateful result as a stateless caller expects it."""
    return cached_privately(result) if method in CACHEABLE else complete(result)
