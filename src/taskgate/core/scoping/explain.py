"""A scope's decisions as rows: every server and tool, included or excluded, and why.

For `taskgate scopes explain` and the console, never for callers: the rows name what a scope hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from taskgate.core.scoping.subset import Exclusion, Subset
from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One row: a server (no tool) or a tool. `reason` is empty if it is included."""

    server: str
    tool: str
    seen: bool
    reason: str
    detail: str


def explain(subset: Subset, tools: Mapping[str, Iterable[str]] | None = None) -> tuple[ExplainRow, ...]:
    """Return rows for all servers of the registry, and for each included server its tools as far as they are given."""
    return tuple(_rows(subset, tools or {}))


def _rows(subset: Subset, tools: Mapping[str, Iterable[str]]) -> Iterator[ExplainRow]:
    notes: dict[str, list[Exclusion]] = {}
    for line in subset.log:
        notes.setdefault(line.subject, []).append(line)
    for server in subset.servers:
        noted = notes.pop(server, [])
        yield ExplainRow(
            server, "", True, ", ".join(line.reason for line in noted), "; ".join(line.detail for line in noted)
        )
        for tool in tools.get(server, ()):
            yield _tool_row(subset, server, tool)
    for subject, lines in notes.items():
        yield from (ExplainRow(subject, "", False, line.reason.value, line.detail) for line in lines)


def _tool_row(subset: Subset, server: str, tool: str) -> ExplainRow:
    why = subset.explain(server, tool)
    if why is None:
        return ExplainRow(server, tool, True, "", "")
    return ExplainRow(server, tool, False, why.reason.value, why.detail)
