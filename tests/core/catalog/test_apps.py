"""What tools and peers declare about MCP Apps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core import wire
from taskgate.core.catalog import apps
from taskgate.core.catalog.entry import EntryKind, read_entry

URI = "ui://clock/app.html"


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        ({"ui": {"resourceUri": URI}}, (URI,)),
        ({"ui/resourceUri": URI}, (URI,)),
        ({"openai/outputTemplate": URI}, (URI,)),
        ({"ui": {"resourceUri": URI}, "ui/resourceUri": "ui://other"}, (URI, "ui://other")),
        ({"ui": {"resourceUri": URI}, "ui/resourceUri": URI}, (URI,)),
        ({"ui": {"resourceUri": "https://clock.example"}}, ()),
        ({"ui": {"resourceUri": "ui://"}}, ()),
        ({"ui": {"resourceUri": "ui://" + "x" * 3000}}, ()),
        ({"ui": {"resourceUri": 7}}, ()),
        ({"ui": "ui://x"}, ()),
        (["ui"], ()),
        (None, ()),
    ],
)
def test_addresses_of_an_interface_are_found_under_every_key(meta: Any, found: tuple[str, ...]) -> None:
    assert apps.ui_addresses({"name": "t", "_meta": meta}) == found
    entry = read_entry(EntryKind.TOOL, "s", wire.raw({"name": "t", "_meta": meta}))
    assert entry is not None
    assert entry.ui_addresses == found


@pytest.mark.parametrize(
    ("meta", "model", "app"),
    [
        ({}, True, True),
        (None, True, True),
        ({"ui": {}}, True, True),
        ({"ui": {"visibility": ["model", "app"]}}, True, True),
        ({"ui": {"visibility": ["app"]}}, False, True),
        ({"ui": {"visibility": ["model"]}}, True, False),
        ({"ui": {"visibility": []}}, False, False),
        ({"ui": {"visibility": "app"}}, True, True),
        ({"openai/visibility": "private"}, False, True),
        ({"openai/visibility": "public"}, True, True),
        ({"openai/widgetAccessible": False}, True, False),
        ({"ui": {"visibility": ["model"]}, "openai/visibility": "private"}, True, False),
    ],
)
def test_visibility_of_a_tool_is_read(meta: Any, model: bool, app: bool) -> None:
    definition = {"name": "t", "_meta": meta}
    assert (apps.is_for_model(definition), apps.is_for_apps(definition)) == (model, app)
    entry = read_entry(EntryKind.TOOL, "s", wire.raw(definition))
    assert entry is not None
    assert (entry.is_for_model, entry.traits.is_for_apps) == (model, app)


@pytest.mark.parametrize(
    ("capabilities", "renders"),
    [
        ({"extensions": {apps.UI_EXTENSION: {"mimeTypes": [apps.APP_MIME]}}}, True),
        ({"extensions": {apps.UI_EXTENSION: {}}}, True),
        ({"extensions": {apps.UI_EXTENSION: {"mimeTypes": ["text/uri-list"]}}}, False),
        ({"extensions": {apps.UI_EXTENSION: {"mimeTypes": "text/html"}}}, False),
        ({"extensions": {apps.UI_EXTENSION: True}}, False),
        ({"extensions": []}, False),
        ({}, False),
    ],
)
def test_a_host_declares_that_it_renders_apps(capabilities: Any, renders: bool) -> None:
    assert apps.supports_apps(capabilities) is renders


def rewritten(meta: Any, shown: dict[str, str | None]) -> Any:
    tool = wire.members_of(wire.encode({"name": "t", "_meta": meta}))
    apps.with_addresses(tool, shown)
    return json.loads(wire.join(tool))["_meta"]


def test_only_addresses_with_another_one_are_rewritten() -> None:
    meta = {"ui": {"resourceUri": URI, "visibility": ["app"]}, "ui/resourceUri": URI, "openai/outputTemplate": "ui://b"}
    assert rewritten(meta, {URI: "ui://s.taskgate/clock/app.html"}) == {
        "ui": {"resourceUri": "ui://s.taskgate/clock/app.html", "visibility": ["app"]},
        "ui/resourceUri": "ui://s.taskgate/clock/app.html",
        "openai/outputTemplate": "ui://b",
    }
    assert rewritten(meta, {}) == meta
    assert rewritten({"ui": 3, "ui/resourceUri": 7}, {URI: None}) == {"ui": 3, "ui/resourceUri": 7}
    assert rewritten({"ui": {"a": 1}}, {URI: None}) == {"ui": {"a": 1}}


def test_an_interface_that_a_caller_may_not_read_is_removed() -> None:
    meta = {"ui": {"resourceUri": URI, "visibility": ["app"]}, "ui/resourceUri": URI, "x": 1}
    assert rewritten(meta, {URI: None}) == {"ui": {"visibility": ["app"]}, "x": 1}


@pytest.mark.parametrize("before", [None, {"x": 1}, {"ui": {"visibility": ["model"]}, "x": 1}, [], {"ui": []}])
def test_an_interface_is_added_to_a_tool_without_one(before: Any) -> None:
    tool = wire.members_of(wire.encode({"name": "t"} | ({} if before is None else {"_meta": before})))
    apps.with_interface(tool, URI)
    meta = json.loads(wire.join(tool))["_meta"]
    kept = before["ui"] if isinstance(before, dict) and isinstance(before.get("ui"), dict) else {}
    assert meta["ui"] == {**kept, "resourceUri": URI}
    assert meta["ui/resourceUri"] == URI
    assert apps.ui_addresses({"_meta": meta}) == (URI,)
