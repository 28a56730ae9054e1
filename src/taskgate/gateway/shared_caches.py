"""In-memory copies of what other gateways on the same store may change: grants, pins, temporary scopes, added servers.

Each kind has a revision in the store, which every change increments. A change is announced, and the revisions are also read
with each renewal of the lease. A durable call compares the revisions again inside the transaction of its intent. A plain call
writes nothing, so it is forwarded only while every copy was confirmed to be current within the last seconds, and refused
otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.task_store import TaskStore

CONFIRMED_WITHIN_S: Final = 5.0


class SharedCaches:
    """`loads` reads each kind anew."""

    def __init__(
        self, store: TaskStore, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> None:
        self._store = store
        self._plan = plan
        self._loads = loads
        self._loaded: dict[str, int] = {}
        self._confirmed_at = float("-inf")

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._loads)

    async def load_all(self) -> None:
        """At the start. What has just been read is current, also before a renewal of the lease has said so."""
        before = clock.monotonic()
        for topic in self._loads:
            await self.load(topic)
        self._confirmed_at = before

    async def load(self, topic: str) -> None:
        """The revision is read before the rows: they may be newer than it says, never older."""
        revision = (await self._store.read_revisions()).get(topic, 0)
        await self._loads[topic]()
        self._loaded[topic] = revision
        self._store.now_known(topic, revision)

    async def load_if_changed(self, topic: str) -> None:
        """For the poll: nothing is read as long as the renewals of the lease show the revision that we have."""
        seen = self._store.revisions
        if seen is None or seen.numbers.get(topic, 0) != self._loaded.get(topic):
            await self.load(topic)

    def check(self) -> None:
        """Raises GatewayFault where a copy may be out of date for too long."""
        if clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S or self._confirm():
            return
        if not self._plan.value.features.degraded_passthrough:
            raise GatewayFault(
                "store_unavailable",
                f"What the gateway knows of grants, pins and scopes was not confirmed by its store for {CONFIRMED_WITHIN_S:.0f} "
                "seconds. The call was not executed; try again soon.",
                retry_after_s=1.0,
            )

    def _confirm(self) -> bool:
        seen = self._store.revisions
        if seen is not None:
            self._confirmed_at = max(self._confirmed_at, seen.current_at(self._loaded))
        return clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S


def shared_caches(
    store: TaskStore, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]
) -> SharedCaches | None:
    """None where no other gateway can change anything."""
    return None if store.revisions is None else SharedCaches(store, plan, loads)
