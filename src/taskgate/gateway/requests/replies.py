"""What goes back to a door: a result, an upstream's own error as it came, or an error of ours with its number and reference.

As whom a caller is shown lists.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from taskgate.core import wire
from taskgate.core.catalog.entry import STATELESS_AUDIENCE, Audience
from taskgate.core.errors import Executed, GatewayFault, TaskgateError, UpstreamError
from taskgate.core.generations import Generation, code_of, error_object, speaks_tasks
from taskgate.core.wire import Message
from taskgate.gateway.plan.plan import Plan
from taskgate.gateway.requests.admission import TooBusy
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import RelayedError
from taskgate.telemetry.logs import log


def audience_of(request: Request) -> Audience:
    session = request.session
    if session is None:
        return STATELESS_AUDIENCE
    return Audience(Generation.STATEFUL, speaks_tasks(session.version), session.task_aware)


_STATELESS_STATUS: Final = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}
_RESOURCE_MISSING: Final = -32002


@dataclass(frozen=True, slots=True)
class CallerReply:
    body: bytes
    status: int = 200
    retry_after_s: float | None = None
    error_type: str = ""


def relayed(request: Request, error: RelayedError) -> CallerReply:
    """An upstream's own error passes as it came, but for numbers that the caller's generation does not have."""
    raw, status = error.raw, 200
    if request.generation is Generation.STATELESS:
        if error.code == _RESOURCE_MISSING:
            raw = wire.encode({**wire.parse_strictly(raw), "code": -32602})
        status = _STATELESS_STATUS.get(error.code, 200)
    return CallerReply(wire.failure(request.message.id, raw), status, error_type=str(error.code))


def refused(
    plan: Plan,
    problem: TaskgateError,
    message_id: bytes | None,
    generation: Generation,
    facts: Mapping[str, object] | None = None,
) -> CallerReply:
    """An error of ours, with the number of the caller's generation and a reference that the log has too."""
    correlation_id = secrets.token_hex(8)
    if not isinstance(problem, TooBusy):
        log.info(
            "refused",
            error_type=problem.error_type,
            correlation_id=correlation_id,
            executed=problem.executed.value,
            **(facts or {}),
        )
    body = error_object(problem, generation, correlation_id, plan.calls.seed_task_codes, plan.features.legacy_numbers)
    code = code_of(problem.error_type)
    return CallerReply(wire.failure(message_id, body), code.status, problem.retry_after_s, problem.error_type)


def broken(fault: Exception, message: Message, generation: Generation) -> CallerReply:
    """Something in the gateway itself went wrong: the caller gets a reference, the log the rest."""
    correlation_id = secrets.token_hex(8)
    log.error("request failed", correlation_id=correlation_id, method=message.method, exc_info=fault)
    problem = GatewayFault("internal", "Something went wrong inside the gateway; its log says more.")
    return CallerReply(wire.failure(message.id, error_object(problem, generation, correlation_id)))


def going_down() -> GatewayFault:
    text = "The gateway is shutting down. The call was not executed; try again in a moment."
    return GatewayFault("shutting_down", text, retry_after_s=5)


def stopped_meanwhile() -> TaskgateError:
    """For a call that was still under way when the time to drain was over: its caller is not left without a word."""
    return UpstreamError(
        "outcome_unknown",
        "The gateway was stopped before the call was answered. It may or may not have taken effect.",
        executed=Executed.MAYBE,
    )
