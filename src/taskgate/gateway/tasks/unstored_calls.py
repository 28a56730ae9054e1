"""The errors for calls whose callers have waited long enough, but that cannot become a task."""

from __future__ import annotations

from taskgate.core.errors import CallerError, Executed, GatewayFault
from taskgate.gateway.requests.admission import RETRY_AFTER_S


def running_unstored(tool: str) -> GatewayFault:
    """The error for the caller of a call that was sent: nothing that it could do with the call is known to be safe."""
    text = (
        f"{tool} was sent and still runs, but the store could not take it as a task, so it has no task id. It may take effect: "
        "do not repeat it. Its outcome is recorded as a task as soon as the store works again. A call that is sent with an "
        "idempotency key can be asked for again with that key."
    )
    return GatewayFault("store_unavailable", text, executed=Executed.MAYBE, data={"tool": tool})


def queued_unstored(tool: str) -> GatewayFault:
    """The error for the caller of a call that still waited for a slot of its server."""
    return GatewayFault(
        "store_unavailable",
        f"{tool} was not called: it waited for a slot of its server, and the store could not take it as a task. "
        "Try again later.",
        data={"tool": tool},
    )


def answers_unsent(tool: str) -> CallerError:
    """The error for a caller that returned with answers, which still waited for a slot of the server or for its start."""
    return CallerError(
        "overloaded",
        f"{tool} began in an earlier round. The answers to its questions were not sent: they waited too long for the server. "
        "Repeat this request with the same answers and the same requestState, if it has one, to continue the call. "
        "Do not begin it again.",
        executed=Executed.MAYBE,
        gate="budget",
        retry_after_s=RETRY_AFTER_S,
        data={"tool": tool, "retry_after_ms": int(RETRY_AFTER_S * 1000)},
    )
