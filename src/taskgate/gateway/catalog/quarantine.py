"""The tools and resources that are withheld until an operator accepts their changed definition."""

from __future__ import annotations

from collections.abc import Mapping

from taskgate.gateway.catalog.offer import Offer as Offer
from taskgate.gateway.catalog.snapshot import ListRevision


class Quarantine:
    """Tools, as (server, tool) pairs, and resources, by their `resource_key`, that a person must accept before callers see them."""

    def __init__(self) -> None:
        self.tools: frozenset[tuple[str, str]] = frozenset()
        self.changed_interfaces: Mapping[tuple[str, str], str] = {}
        """Tools, hidden or not, whose interface is not what was pinned, with the digest of what it is."""
        self.revision = ListRevision()

    def replace(self, tools: frozenset[tuple[str, str]], changed_interfaces: Mapping[tuple[str, str], str]) -> None:
        if tools != self.tools or changed_interfaces != self.changed_interfaces:
            self.tools, self.changed_interfaces = tools, changed_interfaces
            self.revision.grow()
