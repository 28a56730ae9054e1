"""One consistent state of all catalogs, and the revision that identifies it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.gateway.catalog.offer import Offer as Offer
from taskgate.gateway.catalog.stated_risks import StatedRisks


class CatalogSnapshot(msgspec.Struct, frozen=True):
    """The offers of some servers, and what is quarantined."""

    offers: Mapping[str, Offer]
    quarantined: frozenset[tuple[str, str]]
    changed_interfaces: Mapping[tuple[str, str], str]
    stated_risks: StatedRisks = msgspec.field(default_factory=dict)

    def changed_interface(self, entry: CatalogEntry) -> str:
        """Return the digest of a tool's interface if it differs from its pin, otherwise an empty string."""
        return self.changed_interfaces.get((entry.server, entry.name), "")

    def count(self) -> int:
        """Return the number of entries."""
        return sum(len(entries) for offer in self.offers.values() for entries in offer.entries.values())


class ListRevision:
    """Incremented whenever the lists that callers see may have changed."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 1

    def grow(self) -> None:
        self.number += 1
