"""Own tools for skills, in facade and search mode: find a skill, and read its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace
from taskgate.core.catalog.search import MAX_QUERY, SearchDocument, SearchIndex
from taskgate.core.catalog.skills import DYNAMIC
from taskgate.core.errors import CallerError
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import permitted
from taskgate.gateway.calls.skills import Skills
from taskgate.gateway.catalog.views import View
from taskgate.gateway.own_tools.inner_request import inner_request
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, ToolReply, text_reply
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request

MAX_LISTED: Final = 100
MAX_FILES: Final = 100


class SkillParts(msgspec.Struct, frozen=True):
    skills: Skills
    activity: Activity


async def list_skills(parts: SkillParts, request: Request, given: dict[str, Any]) -> ToolReply:
    await parts.skills.discovery.run(request)
    view = await parts.skills.readings.lookup.view(request, listing=True)
    server = given.get("server")
    found = [entry for entry in _found(view, given.get("query")) if server is None or entry.server == server]
    rows = [
        {
            "server": entry.server,
            "name": entry.skill.name,
            "description": entry.skill.description,
            "uri": entry.name,
            "files": _files(entry),
        }
        for entry in found[:MAX_LISTED]
    ]
    reply: dict[str, Any] = {
        "skills": rows,
        "note": "Read the uri of a skill with read_skill, then the files that it refers to.",
    }
    if len(found) > MAX_LISTED:
        reply["left_out"] = len(found) - MAX_LISTED
    return text_reply(reply)


def _found(view: View, query: str | None) -> list[CatalogEntry]:
    if not query:
        return list(view.skills.values())
    hits = SearchIndex.build(_documents(view)).search(query[:MAX_QUERY], MAX_LISTED)
    return [view.skills[hit.key] for hit in hits]


def _documents(view: View) -> Iterator[SearchDocument]:
    for shown, entry in view.skills.items():
        yield SearchDocument(shown, entry.skill.name, "", entry.skill.description)


def _files(entry: CatalogEntry) -> Any:
    skill = entry.skill
    if skill.files is None:
        return DYNAMIC
    names = [file.uri.removeprefix(f"{skill.root}/") for file in skill.files if file.uri != skill.uri]
    return names if len(names) <= MAX_FILES else [*names[:MAX_FILES], f"({len(names) - MAX_FILES} more)"]


async def read_skill(parts: SkillParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    """Return a file with its server's name: a skill has the authority of its server, not of the operator."""
    server, uri = given["server"], given["uri"]
    readings = parts.skills.readings
    await parts.skills.discovery.run(request)
    view = await readings.lookup.serving(request, server)
    if not permitted(view, server, uri, PatternKind.RESOURCE):
        raise CallerError("unknown_resource", f"{server} has no such file here. list_skills shows what there is.")
    feed = await parts.activity.feed(request)
    params = {"uri": wire.raw(uri)}
    inner = inner_request(parts.activity, request, feed, server, "resources/read", params=params)
    await readings.require_permission(inner, PatternKind.RESOURCE, server, uri, shown=uri)
    result = await readings.forward(inner, server, uri, inner.members())
    members = wire.members_of(result)
    if bytes(members.get("resultType", Raw(b'"complete"'))) != b'"complete"':
        return result
    return text_reply({"server": server, "contents": members.get("contents", Raw(b"[]"))})


SKILL_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.LIST_SKILLS,
            "List the skills of all servers: folders of instructions for particular kinds of work. Call it before you begin "
            "work that a server may have instructions for.",
            (
                Parameter("query", ArgumentKind.TEXT, "A few words on what the skill is for."),
                Parameter("server", ArgumentKind.TEXT, "Only skills of this server."),
            ),
            Family.SKILL,
        ),
        list_skills,
        bare=True,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.READ_SKILL,
            "Read a file of a skill: its SKILL.md, whose uri list_skills gives, or another file of its folder.",
            (SERVER, Parameter("uri", ArgumentKind.TEXT, "The address of the file.", required=True)),
            Family.SKILL,
        ),
        read_skill,
        bare=True,
    ),
)
