"""Own tool that returns tools as Python signatures, for models that write scripts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from taskgate.core.catalog.search import MAX_QUERY, MAX_RESULTS
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.stubs import DescribedTool, stubs_of
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


async def describe_tools(parts: ScriptToolParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Return the stubs, and how large they are beside the list of the same tools."""
    view = await parts.lookup.view(request, listing=True)
    found = [name for name in names_of(view) if is_listed(view, request, view.tools[name.tool])]
    if given.get("names") is not None:
        found = [name for name in found if _is_meant(name, view.tools[name.tool], set(given["names"]))]
    if given.get("search") is not None:
        await load(*FUZZY)
        hits = (await index_of(view)).search(given["search"][:MAX_QUERY], MAX_RESULTS)
        found = [name for name in found if name.tool in {hit.key for hit in hits}]
    stubs = stubs_of([_described(view, name) for name in found], MAX_BYTES)
    facts: dict[str, Any] = {
        "tools": stubs.tools,
        "bytes": stubs.size,
        "bytes_in_tools_list": sum(
            len(view.render_tool(view.tools[name.tool], audience_of(request))) for name in found
        ),
    }
    if stubs.omitted:
        facts |= {"omitted": list(stubs.omitted), "note": "Pass names or search to see the omitted tools."}
    return text_reply(stubs.text or "# No tool fits. Try other words, or no arguments.", facts)


def _is_meant(name: PythonName, tool: ToolRef, wanted: Collection[str]) -> bool:
    return not {name.tool, name.namespace, f"{name.namespace}.{name.function}", tool.server}.isdisjoint(wanted)


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
