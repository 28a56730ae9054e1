"""Own tool that returns tools as Python signatures, for models that write scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from typing import Any, Final

from taskgate.core.catalog.search import MAX_QUERY, MAX_RESULTS
from taskgate.core.governance.decision import Denied
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.stubs import DescribedTool, Stubs, stubs_of
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.own_tools.script_tool_parts import ScriptToolParts
from taskgate.gateway.own_tools.search_tools import index_of, is_listed
from taskgate.gateway.own_tools.tool import ToolReply, text_reply
from taskgate.gateway.requests.audience import audience_of
from taskgate.gateway.requests.request import Request
from taskgate.gateway.scripts.script_tools import names_of
from taskgate.late_imports import FUZZY, load

MAX_BYTES: Final = 60_000
MAX_OMITTED: Final = 200
"""Names of omitted tools that are listed."""
MADE_INLINE: Final = 50
"""Stubs of up to this many tools are made on the event loop; those of more in a thread."""


async def describe_tools(parts: ScriptToolParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Return the stubs, and their size compared with the list of the same tools.

    A tool that only scripts may call is described; one that scripts may not call is not.
    """
    view = await parts.lookup.view(request, listing=True)
    of_scripts = await parts.lookup.view_of_scripts(request)
    found = [name for name in names_of(view) if is_listed(of_scripts, request, of_scripts.tools[name.tool])]
    if given.get("names") is not None:
        found = [name for name in found if _is_named(name, view.tools[name.tool], set(given["names"]))]
    if given.get("search") is not None:
        await load(*FUZZY)
        hits = (await index_of(view)).search(given["search"][:MAX_QUERY], MAX_RESULTS)
        found = [name for name in found if name.tool in {hit.key for hit in hits}]
    stubs = await _stubs(view, found, MAX_BYTES)
    listed = [tool for name in found if is_listed(view, request, tool := view.tools[name.tool])]
    facts: dict[str, Any] = {
        "tools": stubs.tools,
        "bytes": stubs.size,
        "bytes_in_tools_list": sum(len(view.render_tool(tool, audience_of(request))) for tool in listed),
    }
    if stubs.omitted:
        facts |= {"omitted": list(stubs.omitted[:MAX_OMITTED]), "omitted_count": len(stubs.omitted)}
        facts["note"] = "Pass names or search to see the omitted tools."
    return text_reply(stubs.text or "# No matching tools. Try other words, or no arguments.", facts)


async def stubs_of_scope(view: View) -> Stubs:
    """Return the stubs of all tools that scripts may call, of a view of scripts, without a limit on their size."""
    tools = [(name, view.tools[name.tool]) for name in names_of(view)]
    callable_ones = [name for name, tool in tools if tool.entry is not None and not isinstance(tool.decision, Denied)]
    return await _stubs(view, callable_ones, sys.maxsize)


async def _stubs(view: View, names: Sequence[PythonName], max_bytes: int) -> Stubs:
    described = [_described(view, name) for name in names]
    if len(described) <= MADE_INLINE:
        return stubs_of(described, max_bytes)
    return await asyncio.to_thread(stubs_of, described, max_bytes)


def _is_named(name: PythonName, tool: ToolRef, requested: Collection[str]) -> bool:
    return not {name.tool, name.namespace, f"{name.namespace}.{name.function}", tool.server}.isdisjoint(requested)


def _described(view: View, name: PythonName) -> DescribedTool:
    entry = view.tools[name.tool].entry
    definition = entry.definition if entry is not None else {}
    description, output = definition.get("description"), definition.get("outputSchema")
    return DescribedTool(
        name,
        description if isinstance(description, str) else "",
        schema_of(entry),
        output if isinstance(output, dict) else None,
    )
