"""Repeat a call to a stateless server until it returns its result.

A stateless server that needs input returns questions instead of a result. The gateway collects the answers and sends the same
call again with them and with the server's state. Each repetition is a round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from taskgate.core import wire
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.questions.question import ELICIT, NO_STATE, ROOTS, SAMPLE, Answer, Question, bare_params
from taskgate.core.sampling.spec_shapes import spec_shapes
from taskgate.core.wire import Members, Raw
from taskgate.gateway.requests.request_state import text_of
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.upstream_replies import InputRequired, Reply

MAX_ROUNDS: Final = 32
NextRound = Callable[[Reply, int], Awaitable[Members | None]]
"""Takes a reply and the number of its round. Returns the params of the next round, or None if the reply is the last one."""
Send = Callable[[Members, int], Awaitable[Reply]]


async def in_rounds(server: str, reply: Reply, next_round: NextRound, send: Send, *, number: int = 1) -> Reply:
    """Run further rounds and return the last reply. `reply` is the reply to round `number`."""
    while True:
        params = await next_round(reply, number)
        if params is None:
            return reply
        if number > MAX_ROUNDS:
            raise partial_failure(server, f"requested more input {MAX_ROUNDS} times in one call")
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
    """The questions in a reply. Raises UpstreamError if there are none: the call would be repeated forever."""
    if not reply.requests:
        raise partial_failure(server, "requested input without a question")
    return {key: question_in(raw, server, key) for key, raw in reply.requests.items()}


def kept_state(reply: InputRequired) -> bytes:
    return bytes(reply.state) if reply.state is not None else NO_STATE


def next_params(params: Members, answers: Mapping[str, Raw], state: Raw | None) -> Members:
    """The params of the same call with answers and the server's state."""
    again = {**params, "inputResponses": wire.raw(dict(answers))}
    again.pop("requestState", None)
    return again if state is None else {**again, "requestState": state}


def partial_failure(server: str, why: str) -> UpstreamError:
    """The error for a call that was stopped after a round that may have taken effect."""
    text = f"The server {server} {why}. The call was stopped; what it did so far may have taken effect."
    return UpstreamError("upstream_protocol", text, executed=Executed.MAYBE)


def question_in(raw: Raw, server: str, key: str | None = None) -> Question:
    """A question of a stateless result."""
    members = wire.members_of(raw)
    method, params = text_of(members.get("method")) or "", members.get("params")
    return Question(method, spec_shapes(params) if method == SAMPLE else params, server, key=key)


def stateless_answer(question: Question, answer: Answer) -> Raw:
    """The answer in the form that a stateless server expects. It has no errors there, so a refusal becomes a cancellation."""
    if answer.result is not None:
        return bare_params(Raw(answer.result))
    return _REFUSED.get(question.method, Raw(b"{}"))


_REFUSED: Final = {ELICIT: Raw(b'{"action":"cancel"}'), ROOTS: Raw(b'{"roots":[]}')}
