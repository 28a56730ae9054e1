"""A scope's decisions as rows: every server and tool, included or excluded, and why.

For `taskgate scopes explain` and the console, never for callers: the rows name what a scope hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from taskgate.core.scoping.subset import Exclusion, Subset


class ExplainRow(msgspec.Struct, frozen=True):
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
            server=server,
            tool="",
            seen=True,
            reason=", ".join(line.reason for line in noted),
            detail="; ".join(line.detail for line in noted),
        )
        for tool in tools.get(server, ()):
            yield _tool_row(subset, server, tool)
    for subject, lines in notes.items():
        yield from (
            ExplainRow(server=subject, tool="", seen=False, reason=line.reason.value, detail=line.detail)
            for line in lines
        )


def _tool_row(subset: Subset, server: str, tool: str) -> ExplainRow:
    why = subset.explain(server, tool)
    if why is None:
        return ExplainRow(server=server, tool=tool, seen=True, reason="", detail="")
    return ExplainRow(server=server, tool=tool, seen=False, reason=why.reason.value, detail=why.detail)
