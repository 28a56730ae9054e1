"""The error for a call beyond the limit on open tasks or pending approvals."""

from __future__ import annotations

from typing import Final

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import LimitHolder, TooManyOpen
from taskgate.store.operations.task_limits import ADDRESS_FACTOR

RETRY_AFTER_S: Final = 15


def limit_error(refused: TooManyOpen, advice: str) -> GatewayFault:
    """Build the error. It names the setting, and whose tasks or approvals count towards it."""
    times = f"{ADDRESS_FACTOR} times " if refused.holder is LimitHolder.ADDRESS else ""
    return GatewayFault(
        "overloaded",
        f"There are {refused.limit} {refused.what} already. The limit is {times}`limits.{refused.setting}`. {advice}",
        retry_after_s=RETRY_AFTER_S,
        data={"limit": refused.setting, "limit_value": refused.limit, "counted_for": refused.holder.value},
    )
