"""The gateways that share a store: report them in `/ready` and metrics, and divide the limits among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from taskgate.gateway.requests.budgets import Budgets
from taskgate.ports.replicas import Replica
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Metrics


class Differences(NamedTuple):
    """Differences between the live gateways."""

    configuration: bool
    version: bool


class Replicas:
    def __init__(self, store: Store, budgets: Budgets, metrics: Metrics) -> None:
        self._store = store
        self._budgets = budgets
        self._warned = Differences(False, False)
        self._fence = store.ownership.fence
        if store.wakeups is not None:
            metrics.show(*self._gauges())

    def alive(self) -> tuple[Replica, ...]:
        """Return the gateways with a valid lease, as last read, in the same order at every gateway."""
        since = self._store.now_ms() - self._store.lease_ms
        return tuple(sorted((r for r in self._store.replicas if r.seen_ms >= since), key=lambda replica: replica.owner))

    def differences(self) -> Differences:
        alive = self.alive()
        return Differences(
            len({replica.configuration for replica in alive}) > 1, len({replica.version for replica in alive}) > 1
        )

    def maintain(self) -> None:
        """Once a second: update this gateway's share of the limits, and log once if others differ or declared this one dead."""
        if self._store.wakeups is None:
            return
        if self._store.ownership.fence != self._fence:
            self._fence = self._store.ownership.fence
            log.warning(
                "the lease had expired and this gateway was declared dead: others may have taken over its tasks"
            )
        owners = [replica.owner for replica in self.alive()]
        ours = self._store.ownership.owner
        if ours in owners:
            self._budgets.divide(owners.index(ours), len(owners))
        found = self.differences()
        if found.configuration and not self._warned.configuration:
            log.warning("a gateway on the same store has another configuration; they decide differently", seen=owners)
        if found.version and not self._warned.version:
            log.warning("a gateway on the same store has another version", seen=owners)
        self._warned = found

    def report(self) -> dict[str, object]:
        """Return the part of `/ready` about other gateways."""
        if self._store.wakeups is None:
            return {}
        now, alive = self._store.now_ms(), {replica.owner for replica in self.alive()}
        found = self.differences()
        shown = [
            {
                "id": replica.owner,
                "address": replica.address,
                "version": replica.version,
                "configuration": replica.configuration,
                "seen_ms_ago": max(0, now - replica.seen_ms),
                "alive": replica.owner in alive,
                "self": replica.owner == self._store.ownership.owner,
            }
            for replica in self._store.replicas
        ]
        return {
            "replicas": shown,
            "same_configuration": not found.configuration,
            "same_version": not found.version,
        }

    def _gauges(self) -> Iterable[Gauge]:
        def counted() -> Iterable[tuple[tuple[str, ...], float]]:
            alive = len(self.alive())
            return [(("alive",), float(alive)), (("dead",), float(len(self._store.replicas) - alive))]

        def differing() -> Iterable[tuple[tuple[str, ...], float]]:
            found = self.differences()
            return [(("configuration",), float(found.configuration)), (("version",), float(found.version))]

        def lease() -> Iterable[tuple[tuple[str, ...], float]]:
            ours, now = self._store.ownership.owner, self._store.now_ms()
            return [((), max(0, now - r.seen_ms) / 1000) for r in self._store.replicas if r.owner == ours]

        return (
            Gauge("taskgate_replicas", "Gateways seen on the same store within an hour.", ("state",), counted),
            Gauge("taskgate_replicas_differ", "1 if live gateways differ in this.", ("what",), differing),
            Gauge("taskgate_lease_age_seconds", "Since this gateway last renewed its lease.", (), lease),
        )
