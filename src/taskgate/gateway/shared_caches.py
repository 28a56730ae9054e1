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
from taskgate.ports.store import Store
from taskgate.store.operations.revisions import FindRevisions

CONFIRMED_WITHIN_S: Final = 5.0


class SharedCaches:
    """`loads` has the function that reloads each kind."""

    def __init__(self, store: Store, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
        self._store = store
        self._plan = plan
        self._loads = loads
        self._loaded: dict[str, int] = {}
        self._confirmed_at = float("-inf")

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._loads)

    async def load_all(self) -> None:
        """Load everything at the start. What was just read is current, even before the lease is renewed."""
        before = clock.monotonic()
        for topic in self._loads:
            await self.load(topic)
        self._confirmed_at = before

    async def load(self, topic: str) -> None:
        """Load one kind. The revision is read before the rows, so the rows may be newer than it, never older."""
        revision = (await self._store.ask(FindRevisions())).get(topic, 0)
        await self._loads[topic]()
        self._loaded[topic] = revision
        self._store.state.now_known(topic, revision)

    async def load_if_changed(self, topic: str) -> None:
        """Load one kind if its revision, as of the last lease renewal, differs from the loaded one."""
        seen = self._store.revisions
        if seen is None or seen.numbers.get(topic, 0) != self._loaded.get(topic):
            await self.load(topic)

    def check(self) -> None:
        """Raise GatewayFault if a copy was not confirmed recently."""
        if clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S or self._confirm():
            return
        if not self._plan.value.features.degraded_passthrough:
            raise GatewayFault(
                "store_unavailable",
                f"The store has not confirmed the gateway's grants, pins and scopes for {CONFIRMED_WITHIN_S:.0f} seconds. "
                "The call was not executed; retry shortly.",
                retry_after_s=1.0,
            )

    def _confirm(self) -> bool:
        seen = self._store.revisions
        if seen is not None:
            self._confirmed_at = max(self._confirmed_at, seen.current_at(self._loaded))
        return clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S


def shared_caches(
    store: Store, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]
) -> SharedCaches | None:
    """Return None if no other gateway shares the store."""
    return None if store.revisions is None else SharedCaches(store, plan, loads)
