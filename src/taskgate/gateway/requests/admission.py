"""Limit the calls that the gateway handles at once, and refuse calls while it is overloaded.

There are two limits. The number of open calls limits memory. Calls that repeatedly wait long before they are handled, while the
gateway uses the CPU itself or a long queue of them waits, show that it is overloaded (`core.lateness`), and accepting more would
delay all of them. A refused call was not executed and its reply states when to retry; accepted calls continue. A call that has
become a task no longer counts: tasks have their own limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.core.lateness import Lateness, TimeAndCpu
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Metrics

if TYPE_CHECKING:
    from taskgate.core.settings.limits import Limits
    from taskgate.gateway.requests.delivery import ReplyDelivery
    from taskgate.gateway.requests.request import Request


RETRY_AFTER_S: Final = 1.0
QUIET_S: Final = 1.0


class Overloaded(GatewayFault):
    """Raised for every refused call but logged at most once a second: a line for each would add to the overload."""

    def __init__(self) -> None:
        super().__init__(
            "overloaded",
            "The gateway is overloaded. The call was not executed; try again in a second.",
            gate="budget",
            retry_after_s=RETRY_AFTER_S,
            data={"retry_after_ms": int(RETRY_AFTER_S * 1000)},
        )


class Admission:
    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.open_calls: set[ReplyDelivery] = set()
        self._metrics = metrics
        self._logged_at = 0.0
        self._unlogged = 0
        self._lateness = Lateness(limits.busy_after)
        self.adopt(limits)

    def adopt(self, limits: Limits) -> None:
        self._max_open_calls = limits.calls_in_flight
        if limits.busy_after != self._lateness.target_s:
            self._lateness = Lateness(limits.busy_after)

    def enter(self, request: Request) -> None:
        """Count the call as open. Raises `overloaded` if too many are open or the gateway is too late."""
        now, lateness, open_calls = clock.monotonic(), self._lateness, self.open_calls
        waited_s = now - request.arrived
        is_late = waited_s > lateness.target_s or lateness.is_late
        if is_late and lateness.refuses(TimeAndCpu(now, clock.cpu()), waited_s):
            raise self._refuse("late")
        if len(open_calls) >= self._max_open_calls:
            raise self._refuse("full")
        request.delivery.count_in(open_calls)

    def _refuse(self, why: str) -> Overloaded:
        self._metrics.denied.add(f"overloaded_{why}")
        self._unlogged += 1
        now = clock.monotonic()
        if now - self._logged_at >= QUIET_S:
            log.warning(
                "the gateway is overloaded; calls are refused", why=why, calls=self._unlogged, open=len(self.open_calls)
            )
            self._logged_at, self._unlogged = now, 0
        return Overloaded()

    def gauges(self) -> list[Gauge]:
        return [
            Gauge("taskgate_calls_in_flight", "Calls being answered.", (), lambda: [((), float(len(self.open_calls)))])
        ]
