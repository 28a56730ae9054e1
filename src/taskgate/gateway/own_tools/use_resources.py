"""Resources and prompts as tools, and what the gateway's own resources say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.catalog.own_tools import DIAGRAMS, DIAGRAMS_ALIAS, STATUS, Kind, Parameter, ToolFace
from taskgate.core.diagrams import diagrams
from taskgate.core.errors import CallerError
from taskgate.core.events import pending_on_servers
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks import projections
from taskgate.core.wire import Raw
from taskgate.gateway.calls.read_things import agreed, carry_in_turn, permitted
from taskgate.gateway.own_tools.follow_tasks import tasks_of
from taskgate.gateway.own_tools.look_around import server_row
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, ToolReply, inner_request, saying, served
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

# What the gateway's own resources say: diagrams of how it works, and the state of its servers as this caller may see
# it.


async def own_content(context: Context, request: Request, uri: str) -> dict[str, Any] | None:
    """One of our own resources as an entry of `contents`, or None if the URI is none of ours."""
    if uri in (DIAGRAMS, DIAGRAMS_ALIAS):
        said: dict[str, Any] = {"diagrams": diagrams()}
    elif uri == STATUS:
        said = await _status(context, request)
    else:
        return None
    return {"uri": uri, "mimeType": "application/json", "text": wire.encode(said).decode("utf-8")}


async def _status(context: Context, request: Request) -> dict[str, Any]:
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    feed = await context.activity.feed(request)
    now = context.tasks.store.now_ms()
    return {
        "version": __version__,
        "servers": [server_row(context, view, server) for server in view.subset.servers],
        "tasks": Counter(projections.shown_status(task, now) for task in await tasks_of(context, request, None, None)),
        "pending_server": pending_on_servers(feed.open_tasks.values(), now),
        "pending_client": {
            "elicitations": context.activity.inbox.elicitations(request),
            "sampling_requests": context.activity.inbox.sampling_requests(request),
        },
    }


MAX_FOLLOWED: Final = 1000
_URI: Final = Parameter("uri", Kind.TEXT, "The URI of the resource.", required=True)


async def read_resource(context: Context, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, uri = given["server"], given["uri"]
    own = await own_content(context, request, uri)
    if own is not None:
        return saying({"contents": [own]})
    await _allowed(context, request, server, uri)
    inner = await _inner(context, request, server, "resources/read", {"uri": wire.raw(uri)})
    await agreed(context, inner, PatternKind.RESOURCE, server, uri, shown=uri)
    return await _carried(context, inner, server, uri)


async def get_prompt(context: Context, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, name = given["server"], given["name"]
    view = await served(context, request, server)
    able = "prompts" in view.capabilities.get(server, {})
    if not able or not permitted(view, server, name, PatternKind.PROMPT):
        raise CallerError(
            "unknown_prompt", f"{server} has no prompt {name[:120]!r} here. list_prompts shows what there is."
        )
    params = {"name": wire.raw(name)}
    if "arguments" in given:
        params["arguments"] = wire.members_of(request.members()["arguments"])["arguments"]
    inner = await _inner(context, request, server, "prompts/get", params)
    await agreed(context, inner, PatternKind.PROMPT, server, name, shown=name)
    return await _carried(context, inner, server, name)


async def subscribe_resource(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    server, uri = given["server"], given["uri"]
    await _allowed(context, request, server, uri)
    feed = await context.activity.feed(request)
    if uri not in feed.watched and len(feed.watched) >= MAX_FOLLOWED:
        raise CallerError("invalid_params", f"You follow {MAX_FOLLOWED} resources already; unsubscribe from some.")
    if uri not in feed.watched:
        await context.upstreams[server].watch(uri, request.link_key)
        feed.watched[uri] = server
        feed.watched_over[uri] = request.link_key
    return saying({"success": True, "message": "You will be told when it changes, as a notification event."})


async def unsubscribe_resource(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    feed = await context.activity.feed(request)
    server = feed.watched.get(given["uri"])
    if server is None or server != given["server"]:
        return saying({"success": False, "message": "You do not follow this resource."}, is_error=True)
    del feed.watched[given["uri"]]
    key = feed.watched_over.pop(given["uri"])
    if server in context.upstreams:
        await context.upstreams[server].unwatch(given["uri"], key)
    return saying({"success": True, "message": "You will not be told about it any more."})


async def _allowed(context: Context, request: Request, server: str, uri: str) -> None:
    view = await served(context, request, server)
    if not permitted(view, server, uri, PatternKind.RESOURCE):
        raise CallerError(
            "unknown_resource", f"{server} has no such resource here. list_resources shows what there is."
        )


async def _inner(context: Context, request: Request, server: str, method: str, params: dict[str, Raw]) -> Request:
    return inner_request(context, request, await context.activity.feed(request), server, method, params=params)


async def _carried(context: Context, inner: Request, server: str, name: str) -> ToolReply | bytes:
    upstream, timeout_s = context.upstreams[server], context.plan.timeout_of(server)
    call = context.relay.call_for(
        inner, upstream, inner.message.method, inner.members(), name=name, timeout_s=timeout_s
    )
    result = await carry_in_turn(context, inner, upstream, call)
    context.handed_out.note(inner.caller.principal, inner.caller.scope, server, result)
    members = wire.members_of(result)
    if bytes(members.pop("resultType", Raw(b'"complete"'))) != b'"complete"':
        return result
    for key in ("ttlMs", "cacheScope"):
        members.pop(key, None)
    return saying(members)


TOOLS: Final = (
    OwnTool(ToolFace("read_resource", "Read a resource of a server.", (SERVER, _URI)), read_resource),
    OwnTool(
        ToolFace(
            "subscribe_resource",
            "Follow a resource: when it changes, a notification event tells you.",
            (SERVER, _URI),
            reads_only=False,
        ),
        subscribe_resource,
    ),
    OwnTool(
        ToolFace("unsubscribe_resource", "Stop following a resource.", (SERVER, _URI), reads_only=False),
        unsubscribe_resource,
    ),
    OwnTool(
        ToolFace(
            "get_prompt",
            "Fetch a prompt of a server, filled in with your arguments.",
            (
                SERVER,
                Parameter("name", Kind.TEXT, "The prompt's own name, as list_prompts shows it.", required=True),
                Parameter("arguments", Kind.OBJECT, "Values for the prompt's arguments."),
            ),
        ),
        get_prompt,
    ),
)
