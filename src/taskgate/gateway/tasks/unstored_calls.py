"""The errors for calls that should become a task while the store cannot take one."""

from __future__ import annotations

from taskgate.core.errors import Executed, GatewayFault


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
