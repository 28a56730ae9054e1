"""Reads what servers have listed, for pages that show tools. Implemented by the catalogs of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from taskgate.core.catalog.entry import CatalogEntry, EntryKind


class ListedEntries(Protocol):
    """The lists of one server."""

    @property
    def entries(self) -> Mapping[EntryKind, tuple[CatalogEntry, ...]]: ...


class ListedTools(Protocol):
    def offer(self, server: str) -> ListedEntries | None:
        """Return the last lists of a server; None if it has sent none."""
        ...

    def offers(self) -> Mapping[str, ListedEntries]: ...
