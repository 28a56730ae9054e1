"""Calls of stateless callers that a stateful server has interrupted with a question.

The upstream call keeps running while its caller gets `input_required` and later sends a new request with the answers. Each such
call is held in memory under a random id and bound to its principal. If its caller does not return within `HOLD_S`, the questions
are answered with `cancel` and the call is dropped. A suspended call does not survive a restart of the gateway, because the open
question of the server does not either.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import CANCELLED, Answer, Question, bare_params
from taskgate.core.wire import Raw
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.delivery import PromotedTask
from taskgate.gateway.requests.request import Request
from taskgate.ports.link import Link
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import InputRequired, Reply

AskFallback = Callable[[Request, Question], Awaitable[Answer]]
"""Asks a question that the caller does not support in another way."""
Refusal = Callable[[Question], Answer | None]
"""The answer to a question that may not be asked; None if it may."""
HOLD_S: Final = 600.0
MAX_HELD: Final = 10_000
GATHER_S: Final = 0.005
"""A tool may ask several questions at once; they are returned in one round."""


class SuspendedCall(msgspec.Struct):
    """One call, also as the `CallSide` of questions that are not tied to a call."""

    id: str
    principal: str
    request: Request | None
    work: asyncio.Task[Reply] | None = None
    questions: dict[str, tuple[Question, asyncio.Future[Answer]]] = msgspec.field(default_factory=dict)
    changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    rounds: int = 0
    expiry: asyncio.TimerHandle | None = None

    def can_carry(self, question: Question) -> bool:
        """Whether the question can be part of the result of an open request."""
        request = self.request
        if request is None or request.delivery.is_promoted:
            return False
        return can_answer(request.capabilities, question.method, question.decoded())

    def can_keep(self) -> bool:
        """Whether the caller can return with answers to earlier questions, or the call has become a task."""
        return self.request is None or self.request.delivery.can_keep()

    def server_waits(self, text: str | None) -> None:
        if self.request is not None:
            self.request.delivery.server_waits(text)


class SuspendedCalls:
    def __init__(self, urls: UrlElicitations, ask_fallback: AskFallback, refusal: Refusal, home: str) -> None:
        """`home`: the name by which other gateways forward a returning caller to this one; empty if there are none."""
        self.home = home
        self._urls = urls
        self._ask_fallback = ask_fallback
        self._refusal = refusal
        self._held: dict[str, SuspendedCall] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def run(self, request: Request, link: Link, outgoing: UpstreamCall) -> Reply:
        """Start the call and wait for its result or its first questions."""
        if len(self._held) >= MAX_HELD:
            raise GatewayFault("overloaded", "Too many calls wait for answers. Try again later.", retry_after_s=30)
        held = SuspendedCall(secrets.token_urlsafe(16), request.caller.principal, request)
        relay_down = outgoing.on_notification
        outgoing = msgspec.structs.replace(
            outgoing,
            on_notification=lambda method, params: relay_down(method, params) if held.request else None,
            on_question=lambda question: self._on_question(held, question),
            side=held,
        )
        held.work = asyncio.get_running_loop().create_task(link.request(outgoing))
        return await self._round(held)

    async def resume(self, request: Request, held_id: str) -> Reply:
        """Continue the call with the answers of its caller. Unknown keys are ignored, missing ones are asked again (MRTR)."""
        held: SuspendedCall | None = self._held.pop(held_id, None)
        if held is None or held.principal != request.caller.principal:
            text = "The suspended call is no longer waiting. What it did before its question may have taken effect."
            raise CallerError("invalid_params", text)
        if held.expiry is not None:
            held.expiry.cancel()
        held.request = request
        given = request.params.get("inputResponses")
        if type(given) is dict:
            raw = wire.members_of(wire.members_of(request.message.raw_params or b"{}")["inputResponses"])
            for key in list(held.questions):
                if key in raw:
                    _question, future = held.questions.pop(key)
                    if not future.done():
                        future.set_result(Answer(result=bytes(bare_params(raw[key]))))
        return await self._round(held)

    async def _on_question(self, held: SuspendedCall, question: Question) -> Answer:
        refusal = self._refusal(question)
        if refusal is not None:
            return refusal
        request = held.request
        promoted_task = await request.delivery.wait_promoted() if request is not None else None
        if promoted_task is not None:
            # The call became a task while it ran, so the task asks its questions.
            return await promoted_task.ask(question)
        if request is not None and not can_answer(request.capabilities, question.method, question.decoded()):
            return await self._ask_fallback(request, question)
        refused = self._urls.refusal(held.principal, question)
        if refused is not None:
            return refused
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        held.rounds += 1
        held.questions[f"q{held.rounds}"] = (question, answer)
        held.changed.set()
        return await answer

    async def _round(self, held: SuspendedCall) -> Reply:
        assert held.work is not None
        try:
            if not held.questions:
                changed = asyncio.ensure_future(held.changed.wait())
                try:
                    await asyncio.wait((held.work, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            if not held.work.done():
                await clock.sleep(GATHER_S)
        except asyncio.CancelledError:
            # Closing the stream of an open request cancels it in this generation. The call and its work refer to each other.
            held.work.cancel()
            held.work = None
            raise
        if held.work.done():
            return held.work.result()
        promoted_task = await held.request.delivery.wait_promoted() if held.request is not None else None
        return (
            self._suspend(held)
            if promoted_task is None
            else await self._continue_as_task(held, held.work, promoted_task)
        )

    async def _continue_as_task(
        self, held: SuspendedCall, work: asyncio.Task[Reply], promoted_task: PromotedTask
    ) -> Reply:
        """The call became a task while its questions were collected: the task asks them, and the call continues."""
        asking = [
            asyncio.ensure_future(_ask_promoted_task(promoted_task, *questions))
            for questions in held.questions.values()
        ]
        held.questions.clear()
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
        held.changed.clear()
        self._held[held.id] = held
        held.expiry = asyncio.get_running_loop().call_later(HOLD_S, self._expire, held)
        requests = {key: Raw(wire.encode(_input_request(question))) for key, (question, _) in held.questions.items()}
        raw = wire.encode({"resultType": "input_required", "inputRequests": requests})
        return InputRequired(requests, wire.raw(held.id), raw)

    def _expire(self, held: SuspendedCall) -> None:
        """The caller did not return. Cancel the questions, so that the server can end its work."""
        if self._held.pop(held.id, None) is None:
            return
        for _question, future in held.questions.values():
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


async def _ask_promoted_task(promoted_task: PromotedTask, question: Question, answer: asyncio.Future[Answer]) -> None:
    given = await promoted_task.ask(question)
    if not answer.done():
        answer.set_result(given)


def _input_request(question: Question) -> dict[str, object]:
    return {"method": question.method, "params": bare_params(question.params, drop=("elicitationId",))}


def _consume(work: asyncio.Task[Reply]) -> None:
    if not work.cancelled():
        work.exception()
