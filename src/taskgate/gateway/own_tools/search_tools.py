"""Three tools in the place of a big catalog: find a tool by words, read its definition, call it.

A scope with `mode: search` shows these instead of hundreds of definitions that a model would have to read first. They know exactly
what `tools/list` would have shown this caller; a call through them passes every gate that a call by name passes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from taskgate.core import wire
from taskgate.core.catalog.own_tools import Family, Kind, Parameter, ToolFace
from taskgate.core.catalog.search import MAX_QUERY, MAX_RESULTS, SearchDocument, SearchIndex
from taskgate.core.errors import CallerError
from taskgate.core.generations import Generation
from taskgate.core.scoping.scope import HelperTools
from taskgate.core.wire import Raw
from taskgate.gateway.calls.call_tool import call_tool
from taskgate.gateway.calls.find_tool import find_tool
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.own_tools import answer_questions, await_activity, follow_tasks
from taskgate.gateway.own_tools.inner import inner_request
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, json_block, saying
from taskgate.gateway.requests.replies import audience_of
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

DEFAULT_RESULTS: Final = 10
_HELPERS: Final = {
    tool.face.name: tool for family in (follow_tasks, await_activity, answer_questions) for tool in family.TOOLS
}
SHORT_DESCRIPTION: Final = 240
_WIDER: Final = 4


async def search_tools(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    limit, server = given["limit"], given.get("server")
    wide = MAX_RESULTS if server is not None else min(MAX_RESULTS, limit * _WIDER)
    hits = index_of(view).search(given["query"][:MAX_QUERY], wide)
    found: list[dict[str, Any]] = []
    for hit in hits:
        tool = view.tools[hit.key]
        if is_listed(view, request, tool) and (server is None or tool.server == server):
            found.append({"name": tool.wire, "server": tool.server, "description": _short(tool)})
    next_step = "describe_tool gives the arguments of one; call_tool calls it."
    return saying({"tools": found[:limit], "note": next_step if found else "Nothing fits. Try other words, or fewer."})


async def describe_tool(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    helper = await _helper(context, request, given["name"])
    if helper is not None:
        return ToolReply((json_block(Raw(helper.face.rendered(audience_of(request)))),))
    view, tool = await _named(context, request, given["name"])
    return ToolReply((json_block(Raw(view.render_tool(tool, audience_of(request)))),))


async def call_found_tool(context: Context, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    """The result is the tool's own, as it came."""
    helper = await _helper(context, request, given["name"])
    if helper is not None:
        return await helper.use(context, request, helper.face.read(given.get("arguments")))
    _view, tool = await _named(context, request, given["name"])
    arguments = wire.members_of(request.members()["arguments"]).get("arguments", Raw(b"{}"))
    feed = await context.activity.feed(request)
    params = {"name": wire.raw(tool.wire), "arguments": arguments}
    result = await call_tool(context, inner_request(context, request, feed, tool.server, "tools/call", params=params))
    return b"{}" if request.delivery.answered else result


async def _helper(context: Context, request: Request, name: str) -> OwnTool | None:
    """The tool for following tasks or answering questions of this name, where the scope has them and no server has one."""
    found = _HELPERS.get(name)
    if found is None:
        return None
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    return None if view.scope.helper_tools is HelperTools.NEVER or name in view.tools else found


def index_of(view: View) -> SearchIndex:
    """Made when somebody first searches, and kept as long as the view."""
    return view.search_index or view.index(SearchIndex.build(_documents(view)))


def is_listed(view: View, request: Request, tool: ToolRef) -> bool:
    """Whether `tools/list` would show it to this caller."""
    if tool.entry is None or (tool.unfit_for_headers and request.generation is Generation.STATELESS):
        return False
    return view.shown(tool, request.session is not None and request.session.task_aware) is not None


def _documents(view: View) -> Iterator[SearchDocument]:
    for tool in view.tools.values():
        if tool.entry is None:
            continue
        definition, schema = tool.entry.definition, tool.entry.input_schema
        properties = schema.get("properties") if isinstance(schema, dict) else None
        names = tuple(str(name) for name in properties) if isinstance(properties, dict) else ()
        yield SearchDocument(tool.wire, tool.name, _text(definition, "title"), _text(definition, "description"), names)


async def _named(context: Context, request: Request, name: str) -> tuple[View, ToolRef]:
    """The tool, if this caller may know of it. A wrong name is answered with the nearest one that it may know."""
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    try:
        tool = await find_tool(context, request, name)
    except CallerError:
        tool = None
    if tool is not None and is_listed(view, request, tool):
        return view, tool
    listed = [known for known, other in view.tools.items() if is_listed(view, request, other)]
    near = difflib.get_close_matches(name[:120], listed, n=3)
    hint = f" Did you mean {', '.join(repr(one) for one in near)}?" if near else " search_tools finds what there is."
    raise CallerError("unknown_tool", f"There is no tool {name[:120]!r} here.{hint}", data={"tool": name[:120]})


def _short(tool: ToolRef) -> str:
    assert tool.entry is not None
    text = " ".join(_text(tool.entry.definition, "description").split())
    return text if len(text) <= SHORT_DESCRIPTION else text[: SHORT_DESCRIPTION - 1] + "…"


def _text(definition: Any, key: str) -> str:
    value = definition.get(key)
    return value if isinstance(value, str) else ""


_NAME: Final = Parameter("name", Kind.TEXT, "The name of the tool, as search_tools gives it.", required=True)

TOOLS: Final = (
    OwnTool(
        ToolFace(
            "search_tools",
            "Find tools by what they do. Many more tools can be called than are listed here: search for what you "
            "need, in a few words, before you say that it cannot be done.",
            (
                Parameter("query", Kind.TEXT, "A few words: what the tool should do, or its name.", required=True),
                Parameter("server", Kind.TEXT, "Only tools of this server."),
                Parameter("limit", Kind.WHOLE, "How many at most.", default=DEFAULT_RESULTS, least=1, most=MAX_RESULTS),
            ),
            Family.SEARCH,
        ),
        search_tools,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            "describe_tool",
            "Read the definition of a tool that search_tools found: what it does and which arguments it takes.",
            (_NAME,),
            Family.SEARCH,
        ),
        describe_tool,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            "call_tool",
            "Call a tool that search_tools found, with the arguments that describe_tool explains; or one that a "
            "reply named, such as get_task_result.",
            (_NAME, Parameter("arguments", Kind.OBJECT, "The arguments of the tool.")),
            Family.SEARCH,
            reads_only=False,
        ),
        call_found_tool,
        bare=True,
    ),
)
