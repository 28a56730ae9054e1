"""Own tools for large catalogs: search for a tool, read its definition, call it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace
from taskgate.core.catalog.search import MAX_QUERY, MAX_RESULTS, SearchDocument, SearchIndex
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.text.similar_names import similar_names
from taskgate.core.wire import Raw
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.own_tools.inner_request import inner_request
from taskgate.gateway.own_tools.tool import BoundTool, OwnTool, ToolReply, json_block, text_reply
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.audience import audience_of
from taskgate.gateway.requests.request import Request
from taskgate.late_imports import FUZZY, load

DEFAULT_RESULTS: Final = 10
SHORT_DESCRIPTION: Final = 240
_WIDER: Final = 4


class SearchParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    tool_calls: ToolCalls
    activity: Activity
    helpers: Mapping[str, BoundTool]
    """The tools for following tasks and answering questions."""


async def search_tools(parts: SearchParts, request: Request, given: dict[str, Any]) -> ToolReply:
    await load(*FUZZY)
    view = await parts.lookup.view(request, listing=True)
    limit, server = given["limit"], given.get("server")
    wide = MAX_RESULTS if server is not None else min(MAX_RESULTS, limit * _WIDER)
    hits = (await index_of(view)).search(given["query"][:MAX_QUERY], wide)
    found: list[dict[str, Any]] = []
    for hit in hits:
        tool = view.tools[hit.key]
        if is_listed(view, request, tool) and (server is None or tool.server == server):
            found.append({"name": tool.wire, "server": tool.server, "description": _short(tool)})
    yield_if_large = "describe_tool gives the arguments of one; call_tool calls it."
    return text_reply(
        {"tools": found[:limit], "note": yield_if_large if found else "No matching tools. Try other words, or fewer."}
    )


async def describe_tool(parts: SearchParts, request: Request, given: dict[str, Any]) -> ToolReply:
    helper = await _helper(parts, request, given["name"])
    if helper is not None:
        return ToolReply((json_block(Raw(helper.face.rendered(audience_of(request)))),))
    view, tool = await _named(parts, request, given["name"])
    return ToolReply((json_block(Raw(view.render_tool(tool, audience_of(request)))),))


async def call_found_tool(parts: SearchParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    """Call the tool and return its result unchanged."""
    helper = await _helper(parts, request, given["name"])
    if helper is not None:
        return await helper.use(request, helper.face.read(given.get("arguments")))
    _view, tool = await _named(parts, request, given["name"])
    arguments = wire.members_of(request.members()["arguments"]).get("arguments", Raw(b"{}"))
    feed = await parts.activity.feed(request)
    params = {"name": wire.raw(tool.wire), "arguments": arguments}
    result = await parts.tool_calls.call(
        inner_request(parts.activity, request, feed, tool.server, "tools/call", params=params)
    )
    return b"{}" if request.delivery.answered else result


async def _helper(parts: SearchParts, request: Request, name: str) -> BoundTool | None:
    """Return the helper tool of this name, if the scope has helpers and no server has a tool of this name."""
    found = parts.helpers.get(name)
    if found is None:
        return None
    view = await parts.lookup.view(request)
    return found if view.scope.has_helpers and name not in view.tools else None


async def index_of(view: View) -> SearchIndex:
    """Return the search index, built in a thread at the first search and kept as long as the view."""
    return view.search_index or view.index(await asyncio.to_thread(lambda: SearchIndex.build(_documents(view))))


def is_listed(view: View, request: Request, tool: ToolRef) -> bool:
    """Return whether the caller's model may see the tool."""
    if tool.entry is None or (tool.unfit_for_headers and request.generation is Generation.STATELESS):
        return False
    if not tool.is_for_model:
        return False
    return view.shown(tool, request.session is not None and request.session.task_aware) is not None


def _documents(view: View) -> Iterator[SearchDocument]:
    for tool in view.tools.values():
        if tool.entry is None:
            continue
        definition, schema = tool.entry.definition, tool.entry.input_schema
        properties = schema.get("properties") if isinstance(schema, dict) else None
        names = tuple(str(name) for name in properties) if isinstance(properties, dict) else ()
        yield SearchDocument(
            key=tool.wire,
            name=tool.name,
            title=_text(definition, "title"),
            description=_text(definition, "description"),
            arguments=names,
        )


async def _named(parts: SearchParts, request: Request, name: str) -> tuple[View, ToolRef]:
    """Return the tool if the caller may see it. The error for a wrong name suggests the nearest visible one."""
    view = await parts.lookup.view(request, listing=True)
    try:
        tool = await parts.lookup.tool(request, name)
    except CallerError:
        tool = None
    if tool is not None and is_listed(view, request, tool):
        return view, tool
    listed = [known for known, other in view.tools.items() if is_listed(view, request, other)]
    near = similar_names(name[:120], listed, 3)
    hint = f" Did you mean {', '.join(repr(one) for one in near)}?" if near else " search_tools finds what there is."
    raise CallerError("unknown_tool", f"There is no tool {name[:120]!r} here.{hint}", data={"tool": name[:120]})


def _short(tool: ToolRef) -> str:
    assert tool.entry is not None
    text = " ".join(_text(tool.entry.definition, "description").split())
    return text if len(text) <= SHORT_DESCRIPTION else text[: SHORT_DESCRIPTION - 1] + "…"


def _text(definition: Any, key: str) -> str:
    value = definition.get(key)
    return value if isinstance(value, str) else ""


_NAME: Final = Parameter("name", ArgumentKind.TEXT, "The name of the tool, as search_tools gives it.", required=True)
SEARCH_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.SEARCH_TOOLS,
            "Find tools by what they do. Many more tools can be called than are listed here: search for what you "
            "need, in a few words, before you say that it cannot be done.",
            (
                Parameter(
                    "query", ArgumentKind.TEXT, "A few words: what the tool should do, or its name.", required=True
                ),
                Parameter("server", ArgumentKind.TEXT, "Only tools of this server."),
                Parameter(
                    "limit",
                    ArgumentKind.WHOLE,
                    "How many at most.",
                    default=DEFAULT_RESULTS,
                    minimum=1,
                    maximum=MAX_RESULTS,
                ),
            ),
            Family.SEARCH,
        ),
        search_tools,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.DESCRIBE_TOOL,
            "Read the definition of a tool that search_tools found: what it does and which arguments it takes.",
            (_NAME,),
            Family.SEARCH,
        ),
        describe_tool,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.CALL_TOOL,
            "Call a tool that search_tools found, with the arguments that describe_tool explains; or one that a reply named.",
            (_NAME, Parameter("arguments", ArgumentKind.OBJECT, "The arguments of the tool.")),
            Family.SEARCH,
            reads_only=False,
        ),
        call_found_tool,
        bare=True,
    ),
)
