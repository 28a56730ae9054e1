"""What a server declares about one of its tools: its description, and what a call of it may do."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.risk import Risk
from taskgate.core.settings.servers import ToolTraits
from taskgate.gateway.plan import Plan
from taskgate.ports.listed_tools import ListedTools

LONGEST_DESCRIPTION: Final = 2_000
RISK_LABELS: Final = {
    "reads_only": "reads only",
    "writes": "writes, not destructive",
    "destructive": "destructive",
    "undeclared": "may be destructive",
    "open_world": "reaches other systems",
}


def tool_entry(catalogs: ListedTools, server: str, tool: str) -> CatalogEntry | None:
    """The definition of a tool as its server last listed it."""
    offer = catalogs.offer(server)
    entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
    return next((entry for entry in entries if entry.name == tool), None)


def description_of(entry: CatalogEntry | None) -> str:
    text = entry.definition.get("description") if entry is not None else None
    return text[:LONGEST_DESCRIPTION] if type(text) is str else ""


def risks_of(entry: CatalogEntry | None) -> list[str]:
    """What a call may do, by the hints of the tool: `reads_only`, `writes`, `destructive` or `undeclared`; then
    `open_world` if it reaches systems outside its server. A tool without hints may be destructive, as MCP defines it."""
    hints: dict[str, Any] = dict(entry.annotations) if entry is not None else {}
    if hints.get("readOnlyHint") is True:
        found = ["reads_only"]
    elif hints.get("destructiveHint") is False:
        found = ["writes"]
    elif hints.get("destructiveHint") is True:
        found = ["destructive"]
    else:
        found = ["undeclared"]
    return [*found, "open_world"] if hints.get("openWorldHint") is True else found


def risk_in_rules(plan: Plan, entry: CatalogEntry) -> tuple[Risk, str]:
    """Return the risk of a tool by which rules decide, and where it comes from."""
    declared = entry.traits.risk
    risk = plan.risk_of(entry.server, entry.name, declared)
    if plan.traits.get((entry.server, entry.name), ToolTraits()).risk is not None:
        return risk, "by the configuration"
    if risk is not declared:
        return risk, f"its hints declare {declared}, which counts only with trust_annotations"
    return risk, "it has no hints" if risk is Risk.UNDECLARED else "by its hints"
