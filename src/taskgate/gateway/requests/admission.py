"""How many calls are answered at once, and when the gateway itself is too busy for more.

Two limits, because two things run out. So many calls may be open, which bounds memory. And a call that has lain here for long
before anybody looked at it shows that there is more to do than time to do it: accepting more would only make everybody late. Either
way it is refused at once, was not executed, and its caller is told when to come back; calls that were accepted go on. A call that
has become a task counts no longer: its caller has an answer, and tasks have limits of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Metrics

if TYPE_CHECKING:
    from taskgate.gateway.plan.plan import Limits
    from taskgate.gateway.requests.request import Request

RETRY_AFTER_S: Final = 1.0
QUIET_S: Final = 1.0


class TooBusy(GatewayFault):
    """Told to each caller, and to the log only now and then: writing it down each time would be the last straw."""

    def __init__(self) -> None:
        super().__init__(
            "overloaded",
            "The gateway has too much to do at the moment. The call was not executed; try again in a second.",
            gate="budget",
            retry_after_s=RETRY_AFTER_S,
            data={"retry_after_ms": int(RETRY_AFTER_S * 1000)},
        )


class Admission:
    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.inside: set[Request] = set()
        self._metrics = metrics
        self._told_at = 0.0
        self._untold = 0
        self.adopt(limits)

    def adopt(self, limits: Limits) -> None:
        self._most = limits.calls_in_flight
        self._busy_after_s = limits.busy_after_s

    def enter(self, request: Request) -> None:
        """Count a call in. Raises `overloaded` where there is no room or no time for it."""
        late_s = clock.monotonic() - request.arrived
        if late_s > self._busy_after_s:
            raise self._refuse("late")
        if len(self.inside) >= self._most:
            raise self._refuse("full")
        request.count_in(self.inside)

    def _refuse(self, why: str) -> TooBusy:
        self._metrics.denied.add(f"overloaded_{why}")
        self._untold += 1
        now = clock.monotonic()
        if now - self._told_at >= QUIET_S:
            log.warning("too much to do; calls are refused", why=why, calls=self._untold, open=len(self.inside))
            self._told_at, self._untold = now, 0
        return TooBusy()

    def gauges(self) -> list[Gauge]:
        return [Gauge("taskgate_calls_in_flight", "Calls being answered.", (), lambda: [((), float(len(self.inside)))])]
