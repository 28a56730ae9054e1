"""Own tools that read resources, get prompts, and subscribe to resources."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import permitted
from taskgate.gateway.own_tools.inner_request import inner_request
from taskgate.gateway.own_tools.own_resources import ResourceParts, own_content
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, ToolReply, text_reply
from taskgate.gateway.requests.request import Request

MAX_FOLLOWED: Final = 1000
_URI: Final = Parameter("uri", ArgumentKind.TEXT, "The URI of the resource.", required=True)


async def read_resource(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, uri = given["server"], given["uri"]
    own = await own_content(parts, request, uri)
    if own is not None:
        return text_reply({"contents": [own]})
    await _allowed(parts, request, server, uri)
    inner = await _inner(parts, request, server, "resources/read", {"uri": wire.raw(uri)})
    await parts.readings.require_permission(inner, PatternKind.RESOURCE, server, uri, shown=uri)
    return await _carried(parts, inner, server, uri)


async def get_prompt(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, name = given["server"], given["name"]
    view = await parts.readings.lookup.serving(request, server)
    able = "prompts" in view.capabilities.get(server, {})
    if not able or not permitted(view, server, name, PatternKind.PROMPT):
        raise CallerError(
            "unknown_prompt", f"{server} has no prompt {name[:120]!r} here. list_prompts shows what there is."
        )
    params = {"name": wire.raw(name)}
    if "arguments" in given:
        params["arguments"] = wire.members_of(request.members()["arguments"])["arguments"]
    inner = await _inner(parts, request, server, "prompts/get", params)
    await parts.readings.require_permission(inner, PatternKind.PROMPT, server, name, shown=name)
    return await _carried(parts, inner, server, name)


async def subscribe_resource(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply:
    server, uri = given["server"], given["uri"]
    await _allowed(parts, request, server, uri)
    feed = await parts.activity.feed(request)
    if uri not in feed.watched and len(feed.watched) >= MAX_FOLLOWED:
        raise CallerError("invalid_params", f"You follow {MAX_FOLLOWED} resources already; unsubscribe from some.")
    if uri not in feed.watched:
        # Count the subscription before anything is awaited.
        feed.watched[uri], feed.watched_over[uri] = server, request.link_key
        try:
            await parts.readings.sending.upstreams.value[server].watch(uri, request.link_key)
        except BaseException:
            feed.watched.pop(uri, None)
            feed.watched_over.pop(uri, None)
            raise
    return text_reply({"success": True, "message": "Changes are reported as notification events."})


async def unsubscribe_resource(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply:
    feed = await parts.activity.feed(request)
    server = feed.watched.get(given["uri"])
    if server is None or server != given["server"]:
        return text_reply({"success": False, "message": "You do not follow this resource."}, is_error=True)
    del feed.watched[given["uri"]]
    key = feed.watched_over.pop(given["uri"])
    if server in parts.readings.sending.upstreams.value:
        await parts.readings.sending.upstreams.value[server].unwatch(given["uri"], key)
    return text_reply({"success": True, "message": "Changes are no longer reported."})


async def _allowed(parts: ResourceParts, request: Request, server: str, uri: str) -> None:
    view = await parts.readings.lookup.serving(request, server)
    if not permitted(view, server, uri, PatternKind.RESOURCE):
        raise CallerError(
            "unknown_resource",
            f"{server} has no such resource here. list_resources shows what there is.",
            data={"server": server, "uri": uri[:500]},
        )


async def _inner(parts: ResourceParts, request: Request, server: str, method: str, params: dict[str, Raw]) -> Request:
    return inner_request(parts.activity, request, await parts.activity.feed(request), server, method, params=params)


async def _carried(parts: ResourceParts, inner: Request, server: str, name: str) -> ToolReply | bytes:
    result = await parts.readings.forward(inner, server, name, inner.members())
    members = wire.members_of(result)
    if bytes(members.pop("resultType", Raw(b'"complete"'))) != b'"complete"':
        return result
    for key in ("ttlMs", "cacheScope"):
        members.pop(key, None)
    return text_reply(members)


TOOLS: Final = (
    OwnTool(ToolFace(OwnToolName.READ_RESOURCE, "Read a resource of a server.", (SERVER, _URI)), read_resource),
    OwnTool(
        ToolFace(
            OwnToolName.SUBSCRIBE_RESOURCE,
            "Subscribe to a resource: when it changes, you get a notification event.",
            (SERVER, _URI),
            reads_only=False,
        ),
        subscribe_resource,
        has_local_state=True,
    ),
    OwnTool(
        ToolFace(OwnToolName.UNSUBSCRIBE_RESOURCE, "Stop following a resource.", (SERVER, _URI), reads_only=False),
        unsubscribe_resource,
        has_local_state=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.GET_PROMPT,
            "Fetch a prompt of a server, filled in with your arguments.",
            (
                SERVER,
                Parameter("name", ArgumentKind.TEXT, "The prompt's own name, as list_prompts shows it.", required=True),
                Parameter("arguments", ArgumentKind.OBJECT, "Values for the prompt's arguments."),
            ),
        ),
        get_prompt,
    ),
)
