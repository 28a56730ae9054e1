"""What goes back to a caller: results, errors, questions in its own generation, and the state it carries between rounds."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.entry import STATELESS_AUDIENCE, Audience
from taskgate.core.errors import (
    CallerError,
    Executed,
    GatewayFault,
    TaskgateError,
    UpstreamError,
    stated_executed,
)
from taskgate.core.generations import Generation, code_of, error_object, speaks_tasks
from taskgate.core.questions import ELICIT, SAMPLE, Answer, Question, can_answer, not_supported
from taskgate.core.wire import Message, Raw
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.admission import TooBusy
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import QUESTION_TIMEOUT_S, Keep, Session
from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round
from taskgate.ports.upstream import RelayedError
from taskgate.telemetry.logs import log


def audience_of(request: Request) -> Audience:
    session = request.session
    if session is None:
        return STATELESS_AUDIENCE
    return Audience(Generation.STATEFUL, speaks_tasks(session.version), session.task_aware, session.renders_apps)


_STATELESS_STATUS: Final = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}


@dataclass(frozen=True, slots=True)
class CallerReply:
    body: bytes
    status: int = 200
    retry_after_s: float | None = None
    error_type: str = ""


def relayed(request: Request, error: RelayedError) -> CallerReply:
    """Relay an upstream's own error unchanged."""
    stateless = request.generation is Generation.STATELESS
    status = _STATELESS_STATUS.get(error.code, 200) if stateless else 200
    return CallerReply(wire.failure(request.message.id, error.raw), status, error_type=str(error.code))


def refused(
    plan: Plan,
    problem: TaskgateError,
    message_id: bytes | None,
    generation: Generation,
    message: Message | None = None,
    *,
    facts: Mapping[str, object] | None = None,
) -> CallerReply:
    """An error of ours, with the number of the caller's generation and a reference that the log has too.

    `message` is the request; None where it could not be read.
    """
    correlation_id = secrets.token_hex(8)
    executed = problem.executed if message is None else stated(problem, message)
    if not isinstance(problem, TooBusy):
        log.info(
            "refused",
            error_type=problem.error_type,
            correlation_id=correlation_id,
            executed=executed.value if executed is not None else None,
            **(facts or {}),
        )
    body = error_object(
        problem,
        generation,
        correlation_id,
        executed,
        seed_task_codes=plan.calls.seed_task_codes,
        legacy_numbers=plan.features.legacy_numbers,
    )
    code = code_of(problem.error_type)
    return CallerReply(wire.failure(message_id, body), code.status, problem.retry_after_s, problem.error_type)


def stated(problem: TaskgateError, message: Message) -> Executed | None:
    """What the error of this request states about the call that the request is about."""
    return stated_executed(problem, message.method, message.params or {})


def broken(fault: Exception, message: Message, generation: Generation) -> CallerReply:
    """An unforeseen fault of the gateway: the caller gets a reference to the log. How far the call had come is not known."""
    correlation_id = secrets.token_hex(8)
    log.error("request failed", correlation_id=correlation_id, method=message.method, exc_info=fault)
    text = "Something went wrong inside the gateway; see its log."
    problem = GatewayFault("internal", text, executed=Executed.MAYBE)
    return CallerReply(
        wire.failure(message.id, error_object(problem, generation, correlation_id, stated(problem, message)))
    )


def going_down(message: Message) -> GatewayFault:
    """For a request that comes too late."""
    params = message.params or {}
    if is_about_tasks(message.method, params):
        text = "The gateway is shutting down. Tasks are kept: ask again in a moment."
    elif is_later_round(params):
        text = "The gateway is shutting down. These answers were not sent to the server; send them again in a moment."
    else:
        text = "The gateway is shutting down. The call was not executed; try again in a moment."
    return GatewayFault("shutting_down", text, retry_after_s=5)


def stopped_meanwhile(message: Message | None) -> TaskgateError:
    """For a request that was still under way when the time to drain was over. None: it could not be read."""
    if message is not None and is_about_tasks(message.method, message.params or {}):
        text = "The gateway was stopped before it answered. Tasks are kept: ask again in a moment."
        return GatewayFault("shutting_down", text, retry_after_s=5)
    return UpstreamError(
        "outcome_unknown",
        "The gateway was stopped before the call was answered. It may or may not have taken effect.",
        executed=Executed.MAYBE,
    )


# Putting a server's question to the caller, natively and in its own generation, if the caller said that it can answer.

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


# Signed request state: what a stateless caller carries for us between two rounds of one call.
#
# The caller can read it but not change it: it is signed, bound to the principal, the method and the name that was
# called, and it expires. Nothing secret belongs inside.

LIFETIME_S = 3600
_INVALID_STATE: Final = (
    "The requestState is not valid here, or it has expired. What the call did before may have taken effect."
)


class RequestState(msgspec.Struct, array_like=True):
    """`kind`: relay (an upstream's own state inside), held (a suspended call of ours), again (just call again)."""

    kind: str
    principal: str
    method: str
    name: str
    server: str
    body: str
    expires: int
    nonce: str = ""
    home: str = ""
    """The gateway that another one must bring the caller back to, because what the state leads to lives there only."""


class RequestStateSigner:
    """`now_ms` is the store's clock: the next round may come to another gateway, whose own clock may differ."""

    def __init__(self, key: bytes, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._now_ms = now_ms

    def close(
        self, kind: str, principal: str, method: str, name: str, server: str, *, body: str, home: str = ""
    ) -> str:
        expires, nonce = self._now_ms() // 1000 + LIFETIME_S, secrets.token_hex(6)
        state = RequestState(kind, principal, method, name, server, body, expires, nonce, home)
        payload = msgspec.json.encode(state)
        return _b64(payload + self._sign(payload))

    def open(self, text: Any, principal: str, method: str, name: str) -> RequestState:
        """The state again, or a clear refusal; it never says which check failed."""
        refusal = CallerError("invalid_params", _INVALID_STATE)
        if type(text) is not str:
            raise refusal
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            payload, signature = signed[:-32], signed[-32:]
            if not hmac.compare_digest(signature, self._sign(payload)):
                raise refusal
            state = msgspec.json.decode(payload, type=RequestState)
        except (binascii.Error, ValueError, msgspec.DecodeError, UnicodeError):
            raise refusal from None
        bound = (state.principal, state.method, state.name) == (principal, method, name)
        if not bound or state.expires * 1000 < self._now_ms():
            raise refusal
        return state

    def home_in(self, text: Any) -> tuple[str, bool]:
        """The gateway that a state of ours leads back to, or no name; and whether a suspended call waits there.

        Whether it may be used here and now is for `open` to say.
        """
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if type(text) is str else b""
            if not hmac.compare_digest(signed[-32:], self._sign(signed[:-32])):
                return "", False
            state = msgspec.json.decode(signed[:-32], type=RequestState)
        except (binascii.Error, ValueError, msgspec.DecodeError, UnicodeError):
            return "", False
        return state.home, state.kind == "held"

    def mark(self, *parts: str) -> str:
        """A short signature of a few words, for what must not expire."""
        return self._sign(b"mark" + msgspec.json.encode(parts)).hex()[:32]

    def _sign(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def text_of(raw: wire.Raw | None) -> str | None:
    value = wire.parse_strictly(bytes(raw)) if raw is not None else None
    return value if type(value) is str else None
