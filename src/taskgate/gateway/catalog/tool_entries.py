"""Look up a tool's catalog entry and its input schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.gateway.catalog.catalogs import Catalogs


def schema_of(entry: CatalogEntry | None) -> Mapping[str, Any]:
    """Return a tool's input schema; empty if the server declares no valid one."""
    schema = entry.input_schema if entry is not None else None
    return schema if isinstance(schema, Mapping) else {}


def entry_of(catalogs: Catalogs, server: str, tool: str) -> CatalogEntry | None:
    offer = catalogs.offer(server)
    entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
    return next((entry for entry in entries if entry.name == tool), None)
