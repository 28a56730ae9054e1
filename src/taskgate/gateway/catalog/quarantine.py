"""The tools and resources that are withheld until an operator accepts their changed definition."""

from __future__ import annotations

from collections.abc import Mapping

from taskgate.gateway.catalog.offer import Offer as Offer
from taskgate.gateway.catalog.snapshot import ListRevision
from taskgate.gateway.catalog.stated_risks import StatedRisks


class Quarantine:
    """Withheld tools as (server, tool) pairs, and withheld resources by their `resource_key`."""

    def __init__(self) -> None:
        self.tools: frozenset[tuple[str, str]] = frozenset()
        self.changed_interfaces: Mapping[tuple[str, str], str] = {}
        """Tools whose interface differs from its pin, with the digest of the current interface."""
        self.stated_risks: StatedRisks = {}
        self.revision = ListRevision()

    def state_risks(self, risks: StatedRisks) -> None:
        if risks != self.stated_risks:
            self.stated_risks = risks
            self.revision.grow()

    def replace(self, tools: frozenset[tuple[str, str]], changed_interfaces: Mapping[tuple[str, str], str]) -> None:
        if tools != self.tools or changed_interfaces != self.changed_interfaces:
            self.tools, self.changed_interfaces = tools, changed_interfaces
            self.revision.grow()
