"""Count open connections, in total and per address (`limits.connections`, `limits.connections_per_address`)."""

from __future__ import annotations

from collections import Counter

from taskgate.access.arrival import Arrival
from taskgate.core.settings.limits import Limits


class OpenConnections:
    def __init__(self) -> None:
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._total

    def enter(self, arrival: Arrival, limits: Limits) -> bool:
        """Count a new connection. Return False if a limit is reached. Trusted proxies have no limit per address."""
        alone = not arrival.by_proxy
        if self._total >= limits.connections:
            return False
        if alone and self._by_address[arrival.address] >= limits.connections_per_address:
            return False
        self._total += 1
        self._by_address[arrival.address] += 1
        return True

    def leave(self, arrival: Arrival) -> None:
        self._total -= 1
        self._by_address[arrival.address] -= 1
        if not self._by_address[arrival.address]:
            del self._by_address[arrival.address]
