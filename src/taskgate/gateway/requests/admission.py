"""How many calls are answered at once, and when the gateway itself is too busy for more.

Two limits, because two things run out. So many calls may be open, which bounds memory. And calls that wait for long before they are
looked at, one after the other, show that there is more to do than time to do it (`core.lateness`): accepting more would only make
all of them late. Either way a call is refused at once, was not executed, and its caller is told when to try again; calls that were
accepted go on. A call that has become a task counts no longer: its caller has an answer, and tasks have limits of their own.

Budgets given effect: so many calls at a server at once, so many bytes of a result, so many calls of one caller.

The arithmetic is `core.budgets`; here is the waiting. A server without a budget has no line and no limit, so a call to it pays one
look-up. Who must wait gets its turn by fairness between callers; where no more may wait, a call is refused at once and was not
executed. Plain calls and task runs stand in the same line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core.budgets import BucketLevel, TokenBucket, share, take
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.fair_queue import FairQueue, QueuePlace
from taskgate.core.identity import tenant_of
from taskgate.core.lateness import Lateness
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.large_results import truncated
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskgate.gateway.plan import Limits
    from taskgate.gateway.requests.delivery import ReplyDelivery
    from taskgate.gateway.requests.request import Request

RETRY_AFTER_S: Final = 1.0
QUIET_S: Final = 1.0


class TooBusy(GatewayFault):
    """Sent to each caller, and to the log only now and then: a line for each would make the overload worse."""

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
        self.inside: set[ReplyDelivery] = set()
        self._metrics = metrics
        self._told_at = 0.0
        self._untold = 0
        self._lateness = Lateness(limits.busy_after_s)
        self.adopt(limits)

    def adopt(self, limits: Limits) -> None:
        self._most = limits.calls_in_flight
        if limits.busy_after_s != self._lateness.target_s:
            self._lateness = Lateness(limits.busy_after_s)

    def enter(self, request: Request) -> None:
        """Count a call in. Raises `overloaded` where there is no room or no time for it."""
        now = clock.monotonic()
        if self._lateness.refuses(now, now - request.arrived):
            raise self._refuse("late")
        if len(self.inside) >= self._most:
            raise self._refuse("full")
        request.delivery.count_in(self.inside)

    def _refuse(self, why: str) -> TooBusy:
        self._metrics.denied.add(f"overloaded_{why}")
        self._untold += 1
        now = clock.monotonic()
        if now - self._told_at >= QUIET_S:
            log.warning(
                "the gateway is overloaded; calls are refused", why=why, calls=self._untold, open=len(self.inside)
            )
            self._told_at, self._untold = now, 0
        return TooBusy()

    def gauges(self) -> list[Gauge]:
        return [Gauge("taskgate_calls_in_flight", "Calls being answered.", (), lambda: [((), float(len(self.inside)))])]


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
_NO_LIMIT: Final = 1 << 30
LONGEST_IN_LINE_S: Final = 600.0
"""How long a plain call waits for a slot of its server. The tool's own timeout begins when the call is sent."""


class ServerQueue:
    """The slots of one server and those who wait for them. A slot is held by whoever entered, until it leaves."""

    def __init__(self, server: str, slots: int, max_waiting: int) -> None:
        self.server = server
        self._queue = FairQueue(slots)
        self.resize(slots, max_waiting)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def running(self) -> int:
        return self._queue.running

    def resize(self, slots: int, max_waiting: int) -> None:
        # Neither one caller nor one tenant may fill the whole line, or there would be no one left to be fair to.
        self._queue.limit_waiting(max_waiting, max(1, max_waiting // 2), max(1, max_waiting * 3 // 4))
        self._call(self._queue.resize(slots))

    def dissolve(self) -> None:
        """The budget is gone: everybody may go."""
        self._call(self._queue.resize(_NO_LIMIT))

    def refuse_if_full(self, caller: str) -> None:
        """Raise `overloaded` if a call of this caller could not even wait."""
        if self._queue.is_full_for(caller):
            raise self._overloaded()

    async def enter(self, caller: str, patience_s: float, *, limited: bool = True) -> None:
        """Take a slot, now or in turn. Raises `overloaded`, at once where no more may wait. A task was promised to its caller:
        it is not limited.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        try:
            if self._queue.enter(caller, turn, limited=limited) is QueuePlace.RUNS:
                return
        except CallerError:
            raise self._overloaded() from None
        # Thousands may stand here, each with a time of its own; `asyncio.timeout` would take four times as long and more memory.
        timer = loop.call_later(patience_s, _run_out_of_time, turn)
        try:
            await turn
        except BaseException as reason:
            if not self._queue.abandon(caller, turn):
                self.leave(caller)
            if isinstance(reason, TimeoutError):
                raise self._overloaded() from None
            raise
        finally:
            timer.cancel()

    def leave(self, caller: str) -> None:
        self._call(self._queue.leave(caller))

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """For a plain call, which is refused if its turn does not come."""
        await self.enter(caller, LONGEST_IN_LINE_S)
        try:
            yield
        finally:
            self.leave(caller)

    def _call(self, tickets: Iterable[object]) -> None:
        for turn in tickets:
            assert isinstance(turn, asyncio.Future)
            if not turn.done():
                turn.set_result(None)

    def _overloaded(self) -> CallerError:
        return CallerError(
            "overloaded",
            f"Too many calls are waiting for the server {self.server}. The call was not executed; try again later.",
            gate="budget",
            retry_after_s=RETRY_AFTER_S,
            data={"retry_after_ms": int(RETRY_AFTER_S * 1000)},
        )


def _run_out_of_time(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())


class NameLimits:
    """How often one name may call, and how many of its calls may be open: of each caller, or of each tenant."""

    def __init__(self, who_calls: str) -> None:
        self._who_calls = who_calls
        self._rate: TokenBucket | None = None
        self._most: int | None = None
        self._levels: dict[str, BucketLevel] = {}
        self._open: dict[str, set[ReplyDelivery]] = {}

    def adopt(self, rate: TokenBucket | None, most: int | None) -> None:
        """A reload, or another number of gateways: what was counted goes on."""
        self._rate, self._most = rate, most

    @property
    def in_force(self) -> bool:
        return self._rate is not None or self._most is not None

    def admit(self, name: str, delivery: ReplyDelivery) -> None:
        if self._rate is not None:
            self._charge(self._rate, name)
        if self._most is not None:
            self._count_in(self._most, name, delivery)

    def _count_in(self, most: int, name: str, delivery: ReplyDelivery) -> None:
        calls = self._open.get(name)
        if calls is None:
            if len(self._open) >= MAX_BUCKETS:
                self._open = {known: calls for known, calls in self._open.items() if calls}
            calls = self._open[name] = set()
        if len(calls) >= most:
            raise CallerError(
                "overloaded",
                f"{self._who_calls} too much at once: {most} calls are open, which is the limit. "
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
                f"{self._who_calls} too often. The call was not executed; try again in {wait_ms} ms.",
                gate="budget",
                retry_after_s=wait_s,
                data={"retry_after_ms": wait_ms},
            )

    def _forget_full(self, rate: TokenBucket, now: float) -> None:
        """A bucket that is full again says no more than one that was never used."""
        full_after = rate.burst / rate.per_second
        self._levels = {who: level for who, level in self._levels.items() if now - level.at < full_after}
        while len(self._levels) >= MAX_BUCKETS:
            del self._levels[next(iter(self._levels))]


def _part_of_rate(per_second: float | None, burst: int, among: int) -> TokenBucket | None:
    return None if per_second is None else TokenBucket(per_second / among, max(1.0, burst / among))


def _part_of(limit: int | None, place: int, among: int) -> int | None:
    return None if limit is None else share(limit, place, among)


class Budgets:
    """All budgets of the plan in force. `lines` and `outputs` hold only servers that have one."""

    def __init__(self, plan: Plan) -> None:
        self.lines: dict[str, ServerQueue] = {}
        self.outputs: dict[str, int] = {}
        self.limit_callers = False
        """Whether anything is limited by caller or tenant; if not, calls are not asked about."""
        self._callers, self._tenants = (
            NameLimits("You are calling"),
            NameLimits("The callers of your tenant are calling"),
        )
        self._plan = plan
        self._place, self._gateways = 0, 1
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """A reload: lines keep those who wait in them."""
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
        self.limit_callers = self._callers.in_force or self._tenants.in_force
        budgets = {server: record.budgets for server, record in plan.registry.records.items()}
        self.outputs = {server: b.max_tool_output_bytes for server, b in budgets.items() if b.max_tool_output_bytes}
        slots = {
            server: share(b.max_concurrency, self._place, among) for server, b in budgets.items() if b.max_concurrency
        }
        for server in [server for server in self.lines if server not in slots]:
            self.lines.pop(server).dissolve()
        for server, count in slots.items():
            line = self.lines.get(server)
            if line is None:
                self.lines[server] = ServerQueue(server, count, limits.queue_per_server)
            else:
                line.resize(count, limits.queue_per_server)

    @property
    def gateways(self) -> int:
        """How many share the store."""
        return self._gateways

    def divide(self, place: int, gateways: int) -> None:
        """This is the gateway at this place of so many that share the store: each takes its part of every limit."""
        if (place, gateways) != (self._place, self._gateways):
            self._place, self._gateways = place, gateways
            self.adopt(self._plan)

    def gauges(self) -> list[Gauge]:
        """How full the lines are, for whoever looks."""
        return [
            Gauge(
                "taskgate_line_running",
                "Calls that hold a slot of a server with max_concurrency.",
                ("server_id",),
                lambda: [((server,), line.running) for server, line in self.lines.items()],
            ),
            Gauge(
                "taskgate_line_waiting",
                "Calls that wait for a slot of a server with max_concurrency.",
                ("server_id",),
                lambda: [((server,), line.waiting) for server, line in self.lines.items()],
            ),
        ]

    def admit(self, request: Request) -> None:
        """Count one call of a caller and of its tenant. Raises `rate_limited` when it comes too soon, and `overloaded` where too
        many are open.

        Callers without a token share one name: a fresh session must not be a way around the limit.
        """
        caller = request.caller.principal
        tenant = tenant_of(caller) if self._tenants.in_force else ""
        self._callers.admit(caller, request.delivery)
        if tenant:
            self._tenants.admit(tenant, request.delivery)

    async def cut(self, server: str, result: bytes) -> bytes:
        """A tool's result within its server's limit: cut, with a marker, where it is too long."""
        limit = self.outputs.get(server)
        return result if limit is None or len(result) <= limit else await truncated(result, limit)
