"""Relay one request to a server and its reply to the caller, for all four combinations of protocol generations.

If both sides use the same generation, the bytes of the reply are passed on unchanged. If a stateless server asks a stateful
caller, each question is sent to the caller as a request and the call is repeated with the answers (`rounds`). If a stateful
server asks a stateless caller, the questions are returned as a result and the call waits until the caller returns
(`suspended_calls`). Whether a call is permitted is decided before it gets here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations.generation import STATEFUL, STATELESS
from taskgate.core.generations.stateless import strip_result
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, Answer, Question, bare_params, not_supported
from taskgate.core.waterfall import Waterfall
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ElicitationCompleted, EventHub
from taskgate.gateway.questions.url_elicitations import COMPLETE, URL_REQUIRED, UrlElicitations
from taskgate.gateway.relay.rounds import in_rounds, next_params, question_in, questions_of
from taskgate.gateway.relay.suspended_calls import Refusal, SuspendedCalls
from taskgate.gateway.relay.traced_calls import carry_traced
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.ports.call_failure import CallFailed, never_sent
from taskgate.ports.link import Link
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import StreamNotice, UpstreamCall
from taskgate.ports.upstream_credentials import AccountNeeded
from taskgate.ports.upstream_replies import ErrorReply, InputRequired, RelayedError, Reply, Result

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing
from taskgate.gateway.relay.call_notifications import on_notification, on_stream_change
from taskgate.gateway.relay.results import as_stateless_result, unwrap

_GATEWAY_ERRORS: Final = frozenset({-32020, -32021, -32022})
_RESOURCE_MISSING: Final = -32002
"""2025-11-25 only; 2026-07-28 replaced it by invalid params."""
_INVALID_PARAMS: Final = -32602
Asker = Callable[[Request, Question], Awaitable[Answer]]
Carry = Callable[[Request, Upstream, UpstreamCall], Coroutine[Any, Any, Result]]


class Relay:
    def __init__(
        self,
        state_signer: RequestStateSigner,
        suspended: SuspendedCalls,
        urls: UrlElicitations,
        *,
        ask: Asker,
        ask_fallback: Asker,
        refusal: Refusal,
        waterfall: Waterfall,
        tracing: Tracing | None,
        events: EventHub,
    ) -> None:
        self._state_signer = state_signer
        self._suspended = suspended
        self._urls = urls
        self._ask = ask
        self._ask_fallback = ask_fallback
        self._refusal = refusal
        self._waterfall = waterfall
        self.carry: Carry = self._carry if tracing is None else partial(carry_traced, tracing, self._carry)
        """Return the result in the caller's generation. Raises RelayedError for an error of the server."""
        self._events = events

    def call_for(
        self,
        request: Request,
        upstream: Upstream,
        method: str,
        params: Members,
        name: str,
        *,
        timeout_s: float,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> UpstreamCall:
        """Build the upstream call for a request. Notifications and questions of the server go to the request's caller."""
        session, delivery, token = request.session, request.delivery, request.progress_token
        caller = _CallerOfCall(self, request, upstream.id)
        # By position, because it is built for every call.
        return UpstreamCall(
            method=method,
            params=params,
            profile=session.profile if session is not None else delivery.profile,
            timeout_s=timeout_s,
            on_notification=caller.on_notification,
            on_question=caller.on_question,
            name=name,
            requests_progress=token is not None,
            progress_token=token,
            keep_envelope=request.generation is STATELESS,
            headers=headers,
            conversation=session.stream if session is not None else request.conversation_name,
            side=delivery,
            send_log=delivery,
            on_stream=caller.on_stream,
        )

    def _carry(self, request: Request, upstream: Upstream, call: UpstreamCall) -> Coroutine[Any, Any, Result]:
        if request.generation is STATELESS and "requestState" in call.params:
            return self._next_round(request, upstream, call)
        session = request.session
        link = upstream.open_link(session.link_key) if session is not None else upstream.common_link(request.generation)
        return self._carry_over(request, upstream, call, link)

    async def _carry_over(self, request: Request, upstream: Upstream, call: UpstreamCall, link: Link | None) -> Result:
        """Send the call over this link, or over the caller's link if that is None."""
        if link is None:
            link = await self._link_of(request, upstream)
        same = link.generation is request.generation
        if not same and request.generation is STATELESS:
            return Result(await self._run_suspendable(request, upstream, call, link))
        principal, waterfall = request.caller.principal, self._waterfall
        span = request.delivery.begin_sending(call.method, call.name, link.server, principal, waterfall)
        state = "error"
        try:
            reply = await link.request(call)
            state = "ok" if type(reply) is not ErrorReply else "error"
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            span.over(state, clock.monotonic())
        if type(reply) is Result:
            if same:
                return reply
            return Result(await edited(reply.raw, lambda raw: strip_result(raw, call.method)), reply.decoded)
        if same:
            last = await self._answer_rounds(request, call, link, reply, 1)
            return Result(self._same_generation(request, upstream, call, last))
        return Result(await self._relay_to_stateful(request, upstream, call, link, reply))

    async def _link_of(self, request: Request, upstream: Upstream) -> Link:
        key = request.link_key
        link = upstream.open_link(key)
        if link is not None:
            return link
        timer = request.delivery.start_timer if upstream.transport == "stdio" else None
        if timer is not None:
            timer.server_starts()
        try:
            link = await upstream.link(key, request.delivery.profile)
        except UpstreamError as problem:
            raise never_sent(upstream.id, problem) from None
        if timer is not None:
            await timer.server_started()
        return link

    def _send(self, request: Request, call: UpstreamCall, link: Link) -> Awaitable[Reply]:
        return self._recorded(request, call, link.server, link.request(call))

    async def _recorded(self, request: Request, call: UpstreamCall, server: str, sent: Awaitable[Reply]) -> Reply:
        """Wait for the reply, and record the call in the waterfall."""
        principal, waterfall = request.caller.principal, self._waterfall
        span = request.delivery.begin_sending(call.method, call.name, server, principal, waterfall)
        state = "error"
        try:
            reply = await sent
            state = "ok" if type(reply) is not ErrorReply else "error"
            return reply
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            span.over(state, clock.monotonic())

    def on_notification(self, request: Request, server: str, method: str, params: Raw | None) -> None:
        if method == COMPLETE:
            self._events.publish(ElicitationCompleted(server, params, request))
        else:
            on_notification(request, method, params)

    async def ask_for(self, request: Request, question: Question) -> Answer:
        refusal = self._refusal(question)
        if refusal is not None:
            return refusal
        if request.delivery.promoted_task is not None:
            return await request.delivery.promoted_task.ask(question)
        answer = await self._ask(request, question)
        request.delivery.note_answer(question, answer)
        return answer

    def _same_generation(self, request: Request, upstream: Upstream, call: UpstreamCall, reply: Reply) -> bytes:
        if isinstance(reply, InputRequired):
            return self._pass_questions(request, upstream, call, reply)
        self._classify_error(request, upstream, reply)
        return unwrap(reply)

    def _classify_error(self, request: Request, upstream: Upstream, reply: Reply) -> None:
        if isinstance(reply, ErrorReply) and reply.code == URL_REQUIRED:
            self._urls.classify_error(request.caller.principal, upstream.id, reply.raw, request.session)

    def _pass_questions(self, request: Request, upstream: Upstream, call: UpstreamCall, reply: InputRequired) -> bytes:
        """Both sides are stateless: the questions are passed on, with the server's state inside the gateway's."""
        principal, server = request.caller.principal, upstream.id
        questions = (question_in(raw, server) for raw in reply.requests.values())
        for params in [question.decoded() for question in questions if question.method == ELICIT]:
            if params.get("mode") == "url":
                self._urls.admit(principal, server, params)
            else:
                self._urls.record_form(principal, server)
        if reply.state is None:
            return reply.raw
        members = wire.members_of(reply.raw)
        members["requestState"] = wire.raw(
            self._signed_state(request, upstream, call, "relay", text_of(reply.state) or "")
        )
        return wire.join(members)

    def _signed_state(self, request: Request, upstream: Upstream, call: UpstreamCall, kind: str, body: str) -> str:
        # Only this gateway can continue a suspended call, or a call to a program that it started.
        home = self._suspended.home if kind == "held" or upstream.transport == "stdio" else ""
        principal = request.caller.principal
        return self._state_signer.sign(kind, principal, call.method, call.name, upstream.id, body=body, home=home)

    async def _next_round(self, request: Request, upstream: Upstream, call: UpstreamCall) -> Result:
        """A stateless caller returns with answers."""
        return Result(await self._continued(request, upstream, call))

    async def _continued(self, request: Request, upstream: Upstream, call: UpstreamCall) -> bytes:
        state = self._state_signer.verify(
            text_of(call.params["requestState"]), request.caller.principal, call.method, call.name
        )
        if state.server != upstream.id:
            raise CallerError("invalid_params", "The requestState belongs to another call.")
        if state.kind == "held":
            return await self._finish_suspended(
                request, upstream, call, await self._suspended.resume(request, state.body)
            )
        params = {key: value for key, value in call.params.items() if key != "requestState"}
        request.delivery.keep_state(call.params["requestState"])
        if state.kind == "relay":
            params["requestState"] = wire.raw(state.body)
        else:
            params.pop("inputResponses", None)
        call = call.with_params(params)
        try:
            link = await self._link_of(request, upstream)
            if link.generation is STATEFUL:
                return await self._run_suspendable(request, upstream, call, link)
            reply = await self._send(request, call, link)
        except CallFailed as failure:
            if state.kind == "again" and isinstance(failure, AccountNeeded):
                raise
            # The caller returns with answers to an earlier round, which was executed.
            raise failure.in_round(2) from None
        return self._same_generation(request, upstream, call, await self._answer_rounds(request, call, link, reply, 2))

    async def _answer_rounds(
        self, request: Request, call: UpstreamCall, link: Link, reply: Reply, number: int
    ) -> Reply:
        """Both sides are stateless: ask the questions that the caller cannot answer in its inbox, or by the task that the call
        became, and repeat the call with the answers.
        """

        async def next_round(reply: Reply, _number: int) -> Members | None:
            if not isinstance(reply, InputRequired):
                return None
            promoted_task = await request.delivery.wait_promoted()
            if promoted_task is None and not reply.requests:
                # The caller repeats the call itself and limits the rounds.
                return None
            questions = questions_of(link.server, reply)
            others = {
                key: question for key, question in questions.items() if not self._caller_can_answer(request, question)
            }
            if not others:
                request.delivery.keep_state(reply.state)
                return None
            request.delivery.begin_round(others, reply.state)
            answers = await self._ask_round(request, others, self._ask_fallback_of_call)
            return next_params(call.params, _answers_for_server(others, answers), reply.state)

        return await in_rounds(link.server, reply, next_round, self._sender(request, call, link), number=number)

    def _sender(self, request: Request, call: UpstreamCall, link: Link) -> Callable[[Members, int], Awaitable[Reply]]:
        """A function that sends a later round. If the call has become a task, the intent is stored first."""

        async def send(params: Members, _number: int) -> Reply:
            promoted_task = await request.delivery.wait_promoted()
            if promoted_task is not None:
                await promoted_task.next_round(params, request.delivery.server_state)
            if request.delivery.question_round is not None:
                request.delivery.question_round.mark_sent()
            return await self._send(request, call.with_params(params), link)

        return send

    def _caller_can_answer(self, request: Request, question: Question) -> bool:
        return request.delivery.promoted_task is None and can_answer(
            request.capabilities, question.method, question.decoded()
        )

    async def _ask_round(self, request: Request, questions: Mapping[str, Question], ask: Asker) -> Sequence[Answer]:
        """Ask the questions of one round: all at once if the call is a task, which stores them in one transaction."""
        promoted_task = request.delivery.promoted_task
        if promoted_task is None:
            return await asyncio.gather(*(ask(request, question) for question in questions.values()))
        refused = {key: self._refusal(question) for key, question in questions.items()}
        asked = {key: question for key, question in questions.items() if refused[key] is None}
        answers = await promoted_task.ask_round(asked) if asked else {}
        return [
            refused[key] or answers.get(key) or not_supported(question.method) for key, question in questions.items()
        ]

    async def _ask_fallback_of_call(self, request: Request, question: Question) -> Answer:
        answer = await self._ask_fallback(request, question)
        request.delivery.note_answer(question, answer)
        return answer

    async def _run_suspendable(self, request: Request, upstream: Upstream, call: UpstreamCall, link: Link) -> bytes:
        """A stateless caller of a stateful server: the call may have to outlive this request."""
        call.params.pop("task", None)
        outcome = await self._recorded(request, call, link.server, self._suspended.run(request, link, call))
        return await self._finish_suspended(request, upstream, call, outcome)

    async def _finish_suspended(
        self, request: Request, upstream: Upstream, call: UpstreamCall, outcome: Reply
    ) -> bytes:
        if isinstance(outcome, InputRequired):
            body = text_of(outcome.state) or ""
            members = wire.members_of(outcome.raw)
            members["requestState"] = wire.raw(self._signed_state(request, upstream, call, "held", body))
            return wire.join(members)
        if isinstance(outcome, ErrorReply) and outcome.code == URL_REQUIRED:
            return self._ask_to_open_urls(request, upstream, call, outcome)
        if isinstance(outcome, ErrorReply) and outcome.code == _RESOURCE_MISSING:
            error = wire.parse_strictly(outcome.raw)
            raise RelayedError(wire.encode({**error, "code": _INVALID_PARAMS}), _INVALID_PARAMS)
        return await edited(unwrap(outcome), lambda raw: as_stateless_result(raw, call.method))

    def _ask_to_open_urls(self, request: Request, upstream: Upstream, call: UpstreamCall, reply: ErrorReply) -> bytes:
        """A stateful server requires URLs to be opened first: ask the caller, and repeat the call in the next round."""
        self._urls.classify_error(request.caller.principal, upstream.id, reply.raw, None)
        error = wire.parse_strictly(reply.raw)
        questions = (error.get("data") or {}).get("elicitations") if type(error.get("data")) is dict else None
        if type(questions) is not list or not questions:
            raise RelayedError(wire.encode({**error, "code": -32602}), -32602)
        requests = {
            f"url-{number}": {
                "method": ELICIT,
                "params": {key: value for key, value in item.items() if key not in ("elicitationId", "_meta")},
            }
            for number, item in enumerate(questions)
            if type(item) is dict
        }
        return wire.encode(
            {
                "resultType": "input_required",
                "inputRequests": requests,
                "requestState": self._signed_state(request, upstream, call, "again", ""),
            }
        )

    async def _relay_to_stateful(
        self, request: Request, upstream: Upstream, call: UpstreamCall, link: Link, reply: Reply
    ) -> bytes:
        """A stateful caller of a stateless server: run all rounds while the caller's request stays open."""

        async def next_round(reply: Reply, _number: int) -> Members | None:
            if not isinstance(reply, InputRequired):
                return None
            questions = questions_of(link.server, reply)
            request.delivery.begin_round(questions, reply.state)
            answers = await self._ask_round(request, questions, self.ask_for)
            return next_params(call.params, _answers_for_server(questions, answers), reply.state)

        reply = await in_rounds(link.server, reply, next_round, self._sender(request, call, link))
        self._classify_error(request, upstream, reply)
        return await edited(unwrap(reply, hidden=_GATEWAY_ERRORS), lambda raw: strip_result(raw, call.method))


def _answers_for_server(questions: Mapping[str, Question], answers: Sequence[Answer]) -> dict[str, Raw]:
    return {
        key: _answer_for_server(question, answer)
        for (key, question), answer in zip(questions.items(), answers, strict=True)
    }


def _answer_for_server(question: Question, answer: Answer) -> Raw:
    if answer.result is not None:
        return bare_params(Raw(answer.result))
    if question.method == ELICIT:
        return Raw(b'{"action":"cancel"}')
    text = (
        f"The call needs an answer to {question.method}, which was refused. What it did before may have taken effect."
    )
    raise CallerError("input_refused", text, executed=Executed.MAYBE)


class _CallerOfCall(msgspec.Struct, eq=False):
    """The caller of one call, for what its server sends before the reply."""

    _relay: Relay
    _request: Request
    _server: str

    def on_notification(self, method: str, params: Raw | None) -> None:
        self._relay.on_notification(self._request, self._server, method, params)

    def on_question(self, question: Question) -> Awaitable[Answer]:
        return self._relay.ask_for(self._request, question)

    def on_stream(self, notice: StreamNotice, retry_ms: int | None) -> None:
        on_stream_change(self._request, notice, retry_ms)
