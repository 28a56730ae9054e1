"""Resources and prompts as tools, and what the gateway's own resources say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.activity import pending_on_servers
from taskgate.core.catalog.own_resources import DIAGRAMS, DIAGRAMS_ALIAS, STATUS
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.catalog.task_card import CARD_URI
from taskgate.core.diagrams import diagrams
from taskgate.core.errors import CallerError
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.projections_tools import shown_status
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import Readings, permitted
from taskgate.gateway.own_tools.follow_tasks import tasks_of
from taskgate.gateway.own_tools.look_around import server_row
from taskgate.gateway.own_tools.task_card import card_content
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, TaskParts, ToolReply, inner_request, saying
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request

# What the gateway's own resources say: diagrams of how it works, and the state of its servers as this caller may see
# it.


@dataclass(frozen=True, slots=True)
class ResourceParts:
    readings: Readings
    following: TaskParts

    @property
    def activity(self) -> Activity:
        return self.following.activity


async def own_content(parts: ResourceParts, request: Request, uri: str) -> dict[str, Any] | None:
    """One of our own resources as an entry of `contents`, or None if the URI is none of ours."""
    if uri == CARD_URI:
        return card_content()
    if uri in (DIAGRAMS, DIAGRAMS_ALIAS):
        said: dict[str, Any] = {"diagrams": diagrams()}
    elif uri == STATUS:
        said = await _status(parts, request)
    else:
        return None
    return {"uri": uri, "mimeType": "application/json", "text": wire.encode(said).decode("utf-8")}


async def _status(parts: ResourceParts, request: Request) -> dict[str, Any]:
    view = await parts.readings.lookup.view(request)
    feed = await parts.activity.feed(request)
    now = parts.following.tasks.store.now_ms()
    return {
        "version": __version__,
        "servers": [server_row(parts.readings.sending.upstreams.value, view, server) for server in view.subset.servers],
        "tasks": Counter(shown_status(task, now) for task in await tasks_of(parts.following, request, None, None)),
        "pending_server": pending_on_servers(feed.open_tasks.values(), now),
        "pending_client": {
            "elicitations": parts.activity.inbox.elicitations(request),
            "sampling_requests": parts.activity.inbox.sampling_requests(request),
        },
    }


MAX_FOLLOWED: Final = 1000
_URI: Final = Parameter("uri", ArgumentKind.TEXT, "The URI of the resource.", required=True)


async def read_resource(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, uri = given["server"], given["uri"]
    own = await own_content(parts, request, uri)
    if own is not None:
        return saying({"contents": [own]})
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
        # It counts from here on, before anything is awaited.
        feed.watched[uri], feed.watched_over[uri] = server, request.link_key
        try:
            await parts.readings.sending.upstreams.value[server].watch(uri, request.link_key)
        except BaseException:
            feed.watched.pop(uri, None)
            feed.watched_over.pop(uri, None)
            raise
    return saying({"success": True, "message": "You will be told when it changes, as a notification event."})


async def unsubscribe_resource(parts: ResourceParts, request: Request, given: dict[str, Any]) -> ToolReply:
    feed = await parts.activity.feed(request)
    server = feed.watched.get(given["uri"])
    if server is None or server != given["server"]:
        return saying({"success": False, "message": "You do not follow this resource."}, is_error=True)
    del feed.watched[given["uri"]]
    key = feed.watched_over.pop(given["uri"])
    if server in parts.readings.sending.upstreams.value:
        await parts.readings.sending.upstreams.value[server].unwatch(given["uri"], key)
    return saying({"success": True, "message": "You will not be told about it any more."})


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
    return saying(members)


TOOLS: Final = (
    OwnTool(ToolFace(OwnToolName.READ_RESOURCE, "Read a resource of a server.", (SERVER, _URI)), read_resource),
    OwnTool(
        ToolFace(
            OwnToolName.SUBSCRIBE_RESOURCE,
            "Follow a resource: when it changes, a notification event tells you.",
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
