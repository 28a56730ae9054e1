"""Own tools that show what servers sent: notifications since the last request, and log lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, text_reply
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import LOG_LEVELS
from taskgate.ports.upstream import Upstream

SOURCES: Final = ("protocol", "stderr")


class MessageParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    activity: Activity


async def get_notifications(parts: MessageParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Reading clears what was read."""
    feed = await parts.activity.feed(request)
    server = given.get("server")
    found = [entry for entry in feed.notifications if server is None or entry["server"] == server]
    kept = [entry for entry in feed.notifications if server is not None and entry["server"] != server]
    feed.notifications.clear()
    feed.notifications.extend(kept)
    return text_reply({"notifications": found})


async def get_logs(parts: MessageParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Reading does not clear. The newest come last."""
    view = await parts.lookup.view(request)
    feed = await parts.activity.feed(request)
    lines = [*_stderr(parts, request, view.subset.servers), *feed.logs]
    source, server, level = given.get("source"), given.get("server"), given.get("level")
    minimum = LOG_LEVELS.index(level) if level is not None else 0
    found = [
        line
        for line in lines
        if (source is None or line["source"] == source)
        and (server is None or line["server"] == server)
        and (level is None or (line["level"] in LOG_LEVELS and LOG_LEVELS.index(line["level"]) >= minimum))
    ]
    return text_reply({"logs": found[-given["limit"] :]})


def _stderr(parts: MessageParts, request: Request, servers: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the stderr of this caller's own processes, not of other callers'."""
    return [
        {"server": server, "source": "stderr", "level": "info", "data": line}
        for server in servers
        if server in parts.upstreams.value
        for line in parts.upstreams.value[server].stderr(request.link_key)
    ]


MESSAGE_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.GET_NOTIFICATIONS,
            "Show the notifications that servers sent since you last asked.",
            (Parameter("server", ArgumentKind.TEXT, "Only those of this server."),),
            reads_only=False,
        ),
        get_notifications,
        has_local_state=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.GET_LOGS,
            "Show the newest log lines of servers, from their log messages and from what their processes wrote.",
            (
                Parameter("server", ArgumentKind.TEXT, "Only lines of this server."),
                Parameter("level", ArgumentKind.TEXT, "Only lines of at least this level.", choices=LOG_LEVELS),
                Parameter("source", ArgumentKind.TEXT, "Only lines from here.", choices=SOURCES),
                Parameter("limit", ArgumentKind.WHOLE, "How many lines at most.", default=100, minimum=1, maximum=1000),
            ),
        ),
        get_logs,
        has_local_state=True,
    ),
)
