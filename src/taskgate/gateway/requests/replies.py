"""Replies to callers: results, errors of servers, and errors of the gateway."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import (
    Executed,
    GatewayFault,
    TaskgateError,
    UpstreamError,
    stated_executed,
)
from taskgate.core.generations.error_codes import code_of, error_object
from taskgate.core.generations.generation import Generation
from taskgate.core.wire import Message
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.admission import Overloaded
from taskgate.gateway.requests.request import Request
from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round
from taskgate.ports.upstream_replies import RelayedError
from taskgate.telemetry.logs import log

_STATELESS_STATUS: Final = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}


class CallerReply(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    retry_after_s: float | None = None
    error_type: str = ""


def relayed_error(request: Request, error: RelayedError) -> CallerReply:
    """Relay an upstream's own error unchanged."""
    stateless = request.generation is Generation.STATELESS
    status = _STATELESS_STATUS.get(error.code, 200) if stateless else 200
    return CallerReply(wire.failure(request.message.id, error.raw), status, error_type=str(error.code))


def error_reply(
    plan: Plan,
    problem: TaskgateError,
    message_id: bytes | None,
    generation: Generation,
    message: Message | None = None,
    *,
    facts: Mapping[str, object] | None = None,
) -> CallerReply:
    """Build the reply for an error of the gateway, with a correlation id that is logged too.

    `message` is the request; None if it could not be parsed.
    """
    correlation_id = secrets.token_hex(8)
    executed = problem.executed if message is None else executed_stated(problem, message)
    if not isinstance(problem, Overloaded):
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
        seed_task_codes=plan.features.seed_task_codes,
        legacy_numbers=plan.features.legacy_numbers,
    )
    code = code_of(problem.error_type)
    return CallerReply(wire.failure(message_id, body), code.status, problem.retry_after_s, problem.error_type)


def executed_stated(problem: TaskgateError, message: Message) -> Executed | None:
    """The `executed` value of the error for the call of this request."""
    return stated_executed(problem, message.method, message.params or {})


def internal_error_reply(fault: Exception, message: Message, generation: Generation) -> CallerReply:
    """Build the reply for an unexpected exception. Whether the call was executed is unknown."""
    correlation_id = secrets.token_hex(8)
    log.error("request failed", correlation_id=correlation_id, method=message.method, exc_info=fault)
    text = "Internal error of the gateway. Its log has the details under this correlation id."
    problem = GatewayFault("internal", text, executed=Executed.MAYBE)
    return CallerReply(
        wire.failure(message.id, error_object(problem, generation, correlation_id, executed_stated(problem, message)))
    )


def shutting_down(message: Message) -> GatewayFault:
    """The error for a request that arrives during shutdown."""
    params = message.params or {}
    if is_about_tasks(message.method, params):
        text = "The gateway is shutting down. Tasks are kept: try again in a moment."
    elif is_later_round(params):
        text = "The gateway is shutting down. These answers were not sent to the server; send them again in a moment."
    else:
        text = "The gateway is shutting down. The call was not executed; try again in a moment."
    return GatewayFault("shutting_down", text, retry_after_s=5)


def stopped_before_reply(message: Message | None) -> TaskgateError:
    """The error for a request that was not finished within the drain time. `message` is None if it could not be parsed."""
    if message is not None and is_about_tasks(message.method, message.params or {}):
        text = "The gateway was stopped before it answered. Tasks are kept: try again in a moment."
        return GatewayFault("shutting_down", text, retry_after_s=5)
    return UpstreamError(
        "outcome_unknown",
        "The gateway was stopped before the call was answered. It may or may not have taken effect.",
        executed=Executed.MAYBE,
    )
