"""Send a server's question to a stateful caller, if the caller declared that it can answer it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, SAMPLE, Answer, Question, not_supported
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import QUESTION_TIMEOUT_S, Keep, Session

_TIMED_OUT: Final = Answer(error=wire.encode({"code": -32603, "message": "The question was not answered in time."}))
_numbers = itertools.count(1)


async def ask_caller(request: Request, question: Question) -> Answer:
    """Send the question on the stream of the request that caused it, so that the caller can relate the two."""
    session = request.session
    if session is None:
        return not_supported(question.method)
    return await ask_session(session, question, request, keep=partial(request.delivery.keep_answer, question))


async def ask_session(
    session: Session,
    question: Question,
    request: Request | None = None,
    timeout_s: float = QUESTION_TIMEOUT_S,
    keep: Keep | None = None,
) -> Answer:
    decoded = question.decoded()
    if not can_answer(session.capabilities, question.method, decoded):
        return not_supported(question.method)
    params = bytes(question.params) if question.params is not None else None
    if question.method == ELICIT and params is not None:
        params = _complete_elicitation(params, decoded)
    elif question.method == SAMPLE and "includeContext" in decoded:
        params = _without_context(params or b"{}", session.capabilities)
    try:
        outlet = request.delivery.outlet if request is not None and request.delivery.outlet.can_send else None
        return await session.ask(question.method, params, outlet, timeout_s, keep)
    except TimeoutError:
        return _TIMED_OUT


def _without_context(params: bytes, capabilities: Mapping[str, Any]) -> bytes:
    """Drop `includeContext` unless the caller offers context and the server requests only its own."""
    members = wire.members_of(params)
    sampling = capabilities.get("sampling")
    offers = isinstance(sampling, Mapping) and "context" in sampling
    requested = bytes(members["includeContext"])
    if requested != b'"none"' and not (offers and requested == b'"thisServer"'):
        del members["includeContext"]
    return wire.join(members)


def _complete_elicitation(params: bytes, decoded: dict[str, object]) -> bytes:
    """Add the `elicitationId` that a stateful caller requires and a stateless server does not send."""
    if decoded.get("mode") != "url" or "elicitationId" in decoded:
        return params
    members = wire.members_of(params)
    members["elicitationId"] = Raw(wire.encode(f"tg-{clock.wall_ms():x}-{next(_numbers)}"))
    return wire.join(members)
