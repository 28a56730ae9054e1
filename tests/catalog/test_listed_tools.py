"""A list of tools is composed without encoding it: what it encodes later is what the digest of its cursors stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.extensions.app_server import RENDERS_APPS
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.rendering import STATELESS_AUDIENCE, Audience
from taskgate.core.catalog.task_card import CARD_URI
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import NO_REQUEST
from taskgate.gateway.catalog.view import View

AUDIENCES: Final = [
    STATELESS_AUDIENCE,
    *(
        Audience(Generation.STATEFUL, *flags)
        for flags in ((True, False, False), (False, False, False), (True, True, False), (True, False, True))
    ),
]
ABLE: Final = {**RENDERS_APPS, "tasks": {"requests": {"tools": {"call": {}}}}}
UI: Final = {"ui": {"resourceUri": "ui://panel"}}
TOOLS: Final[list[dict[str, Any]]] = [
    {"name": "plain", "inputSchema": {"type": "object"}},
    {"name": "drop_it", "inputSchema": {"type": "object"}},
    {"name": "pay", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}},
    {"name": "count", "inputSchema": {"type": "object"}, "outputSchema": {"type": "integer"}},
    {"name": "long", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}},
    {"name": "panel", "inputSchema": {"type": "object"}, "_meta": UI},
    {"name": "odd", "inputSchema": {"type": "object", "properties": {"a": {"x-mcp-header": 5}}}},
]
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "usual": {},
    "denied": {"governance": {"rules": [{"match": "drop_*", "action": "deny"}]}},
    "held": {"governance": {"rules": [{"match": "pay", "action": "approve"}]}},
    "forced": {"governance": {"force_required": ["plain"]}},
    "strict": {"tasks": {"annotation_mode": "strict"}},
    "never promoted": {"tasks": {"promote_after_ms": 0}},
}


def server(tools: list[dict[str, Any]]) -> Upstream:
    upstream = Upstream("2025")

    async def listed(_call: Call) -> dict[str, Any]:
        return {"tools": tools}

    upstream.on("tools/list", listed)
    return upstream


async def view_of(config: Mapping[str, Any], servers: Mapping[str, list[dict[str, Any]]]) -> View:
    async with Gateway(config, {name: server(tools) for name, tools in servers.items()}) as gate:
        await (await gate.caller("2025")).tools()
        lookup = gate.life.app.gateway.console.servers.lookup
        return await lookup.views.view(lookup.plan.value, Caller(), NO_REQUEST)


def all_bytes(view: View, audience: Audience) -> list[bytes]:
    listed = view.listing(EntryKind.TOOL, audience)
    return listed.between(0, len(listed))


def by_name(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in tools}


@virtual_time
@pytest.mark.parametrize("config", CONFIGS)
async def test_each_tool_is_listed_as_it_is_rendered_by_itself(config: str) -> None:
    view = await view_of(CONFIGS[config], {"a": TOOLS, "b": [{"name": "panel", "_meta": UI}]})
    view.slow_tools.add("a", "drop_it")
    for audience in AUDIENCES:
        alone = [
            view.render_tool(tool, audience)
            for tool in view.tools.values()
            if view.shown(tool, audience.task_aware) is not None
            and not (tool.unfit_for_headers and audience.generation is Generation.STATELESS)
        ]
        assert all_bytes(view, audience) == alone
        assert len(alone) > 5


@virtual_time
@pytest.mark.parametrize("profile", ["production", "development"])
@pytest.mark.parametrize("names", [("always", "usual"), ("usual", "always")])
async def test_only_a_tool_in_force_required_is_listed_as_required(profile: str, names: tuple[str, ...]) -> None:
    """In the development profile the rule is only logged, so that the two tools differ in `force_required` alone."""
    rules = [{"match": "*", "action": "approve"}] if profile == "development" else []
    governance = {"rules": rules, "force_required": ["always"]}
    config = {"profile": profile, "governance": governance, "apps": {"task_card": "held"}}
    async with Gateway(config, {"a": server([{"name": name} for name in names])}) as gate:
        able = by_name(await (await gate.caller("2025", capabilities=ABLE)).tools())
        stateless = by_name(await (await gate.caller("2026")).tools())
    assert able["a__always"]["execution"] == {"taskSupport": "required"}
    assert able["a__usual"]["execution"] == {"taskSupport": "optional"}
    for listed in (able, stateless):
        assert listed["a__always"]["_meta"]["ui"]["resourceUri"] == CARD_URI
        assert "_meta" not in listed["a__usual"]


@virtual_time
async def test_lists_have_the_same_digest_only_if_they_are_the_same() -> None:
    views = [await view_of(config, {"a": TOOLS}) for config in (*CONFIGS.values(), {})]
    changed = [*TOOLS[:-1], {**TOOLS[-1], "title": "changed"}]
    views += [await view_of({}, {"a": tools}) for tools in (TOOLS[:-1], TOOLS[::-1], changed)]
    views[0].slow_tools.add("a", "drop_it")
    lists: dict[str, tuple[Audience, list[bytes]]] = {}
    for view in views:
        for audience in AUDIENCES:
            found = audience, all_bytes(view, audience)
            assert lists.setdefault(view.listing(EntryKind.TOOL, audience).digest, found) == found
    assert len(lists) > len(AUDIENCES) * 4


@virtual_time
async def test_text_of_a_look_covers_the_addresses_of_interfaces() -> None:
    view = await view_of({}, {"a": [TOOLS[5]], "b": [{"name": "panel", "_meta": UI}]})
    look = view._look(view.tools["a__panel"], STATELESS_AUDIENCE)
    assert look.interfaces["ui://panel"] != "ui://panel"
    assert look.text(("ui://panel",)) != replace(look, interfaces={}).text(("ui://panel",))
    assert look.text(("ui://other",)) == replace(look, interfaces={}).text(("ui://other",))


@virtual_time
async def test_tool_that_turns_out_to_be_slow_changes_the_list() -> None:
    view = await view_of({}, {"a": TOOLS})
    before = view.listing(EntryKind.TOOL, STATELESS_AUDIENCE)
    earlier = before.between(0, len(before))
    view.slow_tools.add("a", "plain")
    after = view.listing(EntryKind.TOOL, STATELESS_AUDIENCE)
    assert before.between(0, len(before)) == earlier != after.between(0, len(after))
    assert before.digest != after.digest
