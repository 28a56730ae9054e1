"""Enforce the budgets of the configuration: concurrency and result size per server, rate and open calls per caller and tenant.

The arithmetic is in `core.budgets`. A server without a budget has no queue and no limit, so a call to it costs one dictionary
look-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core.errors import CallerError
from taskgate.core.identity.identity import tenant_of
from taskgate.core.token_bucket import BucketLevel, TokenBucket, share, take
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.large_results import truncated
from taskgate.telemetry.metrics import Gauge

if TYPE_CHECKING:
    from taskgate.gateway.requests.delivery import ReplyDelivery
    from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.admission import RETRY_AFTER_S
from taskgate.gateway.requests.cpu_limit import CpuLimit
from taskgate.gateway.requests.server_queue import ServerQueue

MAX_BUCKETS: Final = 10_000
CHARGED: Final = frozenset(
    {
        "tools/call",
        "resources/read",
        "prompts/get",
        "completion/complete",
        "skills/get",
        "resources/directory/read",
    }
)


class NameLimits:
    """Limits on the rate and the open calls of each name, which is a caller or a tenant."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._rate: TokenBucket | None = None
        self._max_open: int | None = None
        self._levels: dict[str, BucketLevel] = {}
        self._open: dict[str, set[ReplyDelivery]] = {}

    def adopt(self, rate: TokenBucket | None, maximum: int | None) -> None:
        """Apply changed limits after a reload or a change in the number of gateways. Counters are kept."""
        self._rate, self._max_open = rate, maximum

    @property
    def in_force(self) -> bool:
        return self._rate is not None or self._max_open is not None

    def admit(self, name: str, delivery: ReplyDelivery) -> None:
        if self._rate is not None:
            self._charge(self._rate, name)
        if self._max_open is not None:
            self._count_in(self._max_open, name, delivery)

    def _count_in(self, maximum: int, name: str, delivery: ReplyDelivery) -> None:
        calls = self._open.get(name)
        if calls is None:
            if len(self._open) >= MAX_BUCKETS:
                self._open = {known: calls for known, calls in self._open.items() if calls}
            calls = self._open[name] = set()
        if len(calls) >= maximum:
            raise CallerError(
                "overloaded",
                f"{self._subject} too much at once: {maximum} calls are open, which is the limit. "
                "The call was not executed; try again when some have ended.",
                gate="budget",
                retry_after_s=RETRY_AFTER_S,
                data={"retry_after_ms": int(RETRY_AFTER_S * 1000)},
            )
        delivery.count_among(calls)

    def _charge(self, rate: TokenBucket, name: str) -> None:
        now = clock.monotonic()
        level, wait_s = take(rate, self._levels.get(name), now)
        if len(self._levels) >= MAX_BUCKETS and name not in self._levels:
            self._forget_full(rate, now)
        self._levels[name] = level
        if wait_s > 0:
            wait_ms = max(1, round(wait_s * 1000))
            raise CallerError(
                "rate_limited",
                f"{self._subject} too often. The call was not executed; try again in {wait_ms} ms.",
                gate="budget",
                retry_after_s=wait_s,
                data={"retry_after_ms": wait_ms},
            )

    def _forget_full(self, rate: TokenBucket, now: float) -> None:
        """Drop full buckets, which are equal to buckets that were never used."""
        full_after = rate.burst / rate.per_second
        self._levels = {name: level for name, level in self._levels.items() if now - level.at < full_after}
        while len(self._levels) >= MAX_BUCKETS:
            del self._levels[next(iter(self._levels))]


def _part_of_rate(per_second: float | None, burst: int, among: int) -> TokenBucket | None:
    return None if per_second is None else TokenBucket(per_second / among, max(1.0, burst / among))


def _part_of_cpu(seconds: float | None, among: int) -> float | None:
    return None if seconds is None else seconds / among


def _part_of(limit: int | None, place: int, among: int) -> int | None:
    return None if limit is None else share(limit, place, among)


class Budgets:
    """All budgets of the current plan. `queues` and `outputs` contain only servers with such a budget."""

    def __init__(self, plan: Plan) -> None:
        self.queues: dict[str, ServerQueue] = {}
        self.outputs: dict[str, int] = {}
        self.limit_callers = False
        """Whether any limit per caller or tenant is set; if not, `admit` need not be called."""
        self._callers, self._tenants = (
            NameLimits("You are calling"),
            NameLimits("The callers of your tenant are calling"),
        )
        self.script_cpu_of_callers, self.script_cpu_of_tenants = CpuLimit(), CpuLimit()
        self._plan = plan
        self._place, self._gateways = 0, 1
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """Apply the plan of a reload. Queues keep the calls that wait in them."""
        self._plan = plan
        limits, among = plan.limits, self._gateways
        self._callers.adopt(
            _part_of_rate(limits.calls_per_caller_per_second, limits.burst_per_caller, among),
            _part_of(limits.calls_in_flight_per_caller, self._place, among),
        )
        self._tenants.adopt(
            _part_of_rate(limits.calls_per_tenant_per_second, limits.burst_per_tenant, among),
            _part_of(limits.calls_in_flight_per_tenant, self._place, among),
        )
        self.script_cpu_of_callers.adopt(_part_of_cpu(limits.script_cpu_per_caller, among))
        self.script_cpu_of_tenants.adopt(_part_of_cpu(limits.script_cpu_per_tenant, among))
        self.limit_callers = self._callers.in_force or self._tenants.in_force
        budgets = {server: record.budgets for server, record in plan.registry.records.items()}
        self.outputs = {server: b.max_tool_output_bytes for server, b in budgets.items() if b.max_tool_output_bytes}
        slots = {
            server: share(b.max_concurrency, self._place, among) for server, b in budgets.items() if b.max_concurrency
        }
        for server in [server for server in self.queues if server not in slots]:
            self.queues.pop(server).remove_limit()
        for server, count in slots.items():
            queue = self.queues.get(server)
            if queue is None:
                self.queues[server] = ServerQueue(server, count, limits.queue_per_server)
            else:
                queue.resize(count, limits.queue_per_server)

    @property
    def gateways(self) -> int:
        """How many gateways share the store."""
        return self._gateways

    def divide(self, place: int, gateways: int) -> None:
        """Set this gateway's position among those that share the store. Each enforces its share of every limit."""
        if (place, gateways) != (self._place, self._gateways):
            self._place, self._gateways = place, gateways
            self.adopt(self._plan)

    def gauges(self) -> list[Gauge]:
        """How many calls hold a slot and how many wait, by server."""
        return [
            Gauge(
                "taskgate_line_running",
                "Calls that hold a slot of a server with max_concurrency.",
                ("server_id",),
                lambda: [((server,), queue.running) for server, queue in self.queues.items()],
            ),
            Gauge(
                "taskgate_line_waiting",
                "Calls that wait for a slot of a server with max_concurrency.",
                ("server_id",),
                lambda: [((server,), queue.waiting) for server, queue in self.queues.items()],
            ),
        ]

    def admit(self, request: Request) -> None:
        """Count a call for its caller and tenant. Raises `rate_limited` or `overloaded`.

        Callers without a token share one name, so that a new session does not bypass the limit.
        """
        caller = request.caller.principal
        tenant = tenant_of(caller) if self._tenants.in_force else ""
        self._callers.admit(caller, request.delivery)
        if tenant:
            self._tenants.admit(tenant, request.delivery)

    async def truncate(self, server: str, result: bytes) -> bytes:
        """Truncate a result to its server's limit, with a marker."""
        limit = self.outputs.get(server)
        return result if limit is None or len(result) <= limit else await truncated(result, limit)
