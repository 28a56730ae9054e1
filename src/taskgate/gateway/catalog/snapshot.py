"""One consistent state of all catalogs, and the revision that identifies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.gateway.catalog.offer import Offer as Offer


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """What some servers offer, and what of it is held back."""

    offers: Mapping[str, Offer]
    quarantined: frozenset[tuple[str, str]]
    changed_interfaces: Mapping[tuple[str, str], str]

    def changed_interface(self, entry: CatalogEntry) -> str:
        """The digest of a tool's interface where that is not what was pinned, else nothing."""
        return self.changed_interfaces.get((entry.server, entry.name), "")

    def count(self) -> int:
        """How many entries there are."""
        return sum(len(entries) for offer in self.offers.values() for entries in offer.entries.values())


class ListRevision:
    """Grows whenever what callers are shown of the lists may be different."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 1

    def grow(self) -> None:
        self.number += 1
