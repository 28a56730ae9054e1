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

_GAVE_UP: Final = Answer(error=wire.encode({"code": -32603, "message": "The question was not answered in time."}))
_numbers = itertools.count(1)


async def ask_caller(request: Request, question: Question) -> Answer:
    """Ask over the request that caused the question, so that the caller knows what it is about."""
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
        return _GAVE_UP


def _without_context(params: bytes, capabilities: Mapping[str, Any]) -> bytes:
    """A server may not have other servers' context read to a model; only a caller that offers context is asked for any."""
    members = wire.members_of(params)
    sampling = capabilities.get("sampling")
    offers = isinstance(sampling, Mapping) and "context" in sampling
    wished = bytes(members["includeContext"])
    if wished != b'"none"' and not (offers and wished == b'"thisServer"'):
        del members["includeContext"]
    return wire.join(members)


def _complete_elicitation(params: bytes, decoded: dict[str, object]) -> bytes:
    """A question from a stateless server lacks what this generation requires: a mode, and an id for a URL."""
    if decoded.get("mode") != "url" or "elicitationId" in decoded:
        return params
    members = wire.members_of(params)
    members["elicitationId"] = Raw(wire.encode(f"tg-{clock.wall_ms():x}-{next(_numbers)}"))
    return wire.join(members)
