"""Rules and lists that match nothing the servers list are named, with what to write instead; nothing uncertain is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.console.test_console_rules_and_usage import page
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.config import load_text
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.errors import UpstreamError
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.registry import Registry, RegistryRecord, SkipReason
from taskgate.core.wire import raw
from taskgate.gateway.catalog.offer import Offer, OmittedTools
from taskgate.gateway.governance.unmatched_report import listed_names, names_by_kind

TOOLS = ("delete_file", "delete_all", "read_file", "write_file", "getUser")
WRONG: dict[str, tuple[str, str]] = {
    # Each with what `check` says to write, and what is meant according to the lists.
    "delete_.*": ("write delete_*", "`delete_*`"),
    "delete_.+": ("write delete_*", "`delete_*`"),
    "delete.*": ("", "`delete*`"),
    "/delete.*/": ("write delete*", "`delete*`"),
    "/delete/i": ("write *delete*", "`*delete*`"),
    "^delete_": ("write delete_*", "`delete_*`"),
    "^delete_file$": ("write delete_file", "`delete_file`"),
    "_file$": ("write *_file", "`*_file`"),
    "(delete|drop)_.*": ("write delete_* and drop_* as 2 patterns", "`delete_*` and `drop_*`"),
    "delete_(file|all)": ("write delete_file and delete_all as 2 patterns", "`delete_file` and `delete_all`"),
    "{delete,drop}_*": ("write delete_* and drop_* as 2 patterns", "`delete_*` and `drop_*`"),
    r"delete_\w+": ("write delete_*", "`delete_*`"),
    "(?i)DELETE_.*": ("write delete_*", "`delete_*`"),
    "[a-z]+_file": ("write *_file", "`*_file`"),
    "delete_%": ("write delete_*", "`delete_*`"),
    "delete_*, drop_*": ("write delete_* and drop_* as 2 patterns", "`delete_*` and `drop_*`"),
    "Delete_*": ("write delete_*", "`delete_*`"),
    "DELETE_FILE": ("write delete_file", "`delete_file`"),
    "Delete*": ("write delete*", "`delete*`"),
    "GETUSER": ("write getuser", "`getUser`"),
    "d\u0435lete_*": ("write delete_*", "`delete_*`"),
    "\uff44elete_*": ("write delete_*", "`delete_*`"),
    "delete\u2013file": ("write delete-file", "`delete_file`"),
    "delete-file": ("", "`delete_file`"),
    "files:delete_fil": ("", "`files:delete_file`"),
    "delet_*": ("", "`delete_*`"),
    "*_fil": ("", "`*_file`"),
    "files:drop_table": ("", "`bank:drop_table`"),
    "files.delete_*": ("", "`files:delete_*`"),
    "mcp__files__delete_*": ("write files:delete_*", "`files:delete_*`"),
    "taskgate:run_scripts": ("", "`taskgate:run_script`"),
}
COMMANDS = "servers: {files: {command: x}, bank: {command: x}}\n"


def offering(*tools: str) -> Upstream:
    server = Upstream("2025")
    server.withdraw("echo")
    for name in tools:
        server.tool(name, _done)
    return server


async def _done(_call: Call) -> str:
    return "done"


def _refuse(_call: Call) -> Any:
    raise RuntimeError("not available")


def files_and_bank() -> dict[str, Upstream]:
    return {"files": offering(*TOOLS), "bank": offering("drop_table")}


def with_rules(*patterns: str) -> dict[str, Any]:
    return {"profile": "production", "governance": {"rules": [{"match": each, "action": "deny"} for each in patterns]}}


def lines(gate: Gateway) -> list[str]:
    return [line.event for line in gate.log if "matches none of" in line.event]


async def unmatched(gate: Gateway) -> dict[str, str]:
    found = (await gate.operator("GET", "/api/v1/rules")).json()["unmatched"]
    return {row["place"]: row["message"] for row in found}


@pytest.mark.parametrize(("pattern", "hint"), [(each, WRONG[each][0]) for each in WRONG if WRONG[each][0]], ids=ascii)
def test_check_says_what_to_write_instead_of_a_wrong_rule(pattern: str, hint: str) -> None:
    text = f"governance: {{rules: [{{match: '{pattern}', action: deny}}]}}\n"
    (warning,) = load_text(COMMANDS + text, environment={}).warnings
    assert (warning.key, warning.hint) == ("governance.rules[0].match", hint)


@virtual_time
async def test_every_wrong_rule_is_named_in_the_log_the_api_and_the_page() -> None:
    patterns = list(WRONG)
    assert len(patterns) >= 30
    async with Gateway(with_rules(*patterns), files_and_bank()) as gate:
        await gate.advance(5)
        written = lines(gate)
        found = (await gate.operator("GET", "/api/v1/rules")).json()
        rows = {row["match"]: row["unmatched"] for row in found["rules"]}
        status, text = await page(gate, "/rules")
        assert status == 200
        for number, pattern in enumerate(patterns):
            meant = WRONG[pattern][1]
            (line,) = [each for each in written if each.startswith(f"rules[{number}] ")]
            assert line.startswith(f"rules[{number}] `{pattern}` matches none of ")
            assert line.endswith(f"; did you mean {meant}")
            assert line.endswith(rows[pattern])
            assert f"rules[{number}] `" in text
        assert len(found["unmatched"]) == len(patterns)
        assert found["unmatched"][0] == {
            "place": "rules[0]",
            "pattern": "delete_.*",
            "names": 6,
            "instead": ["delete_*"],
            "message": "rules[0] `delete_.*` matches none of 6 tools; did you mean `delete_*`",
        }
        assert "matches none of 6 tools; did you mean `delete_*`" in text


@virtual_time
async def test_entries_of_all_lists_are_named() -> None:
    config = {
        "governance": {"force_required": ["slow_.*"]},
        "profiles": {"p": {"servers": ["*"], "tool_denylist": ["delete_fil"]}},
        "scopes": {
            "default": {"profile": "p", "tool_allowlist": ["reed_*", "getUse", "*"], "tool_denylist": ["*_fil"]}
        },
    }
    files = {
        "expose": {"mode": "blocklist", "tools": ["Delete_*"]},
        "allowed_tools": ["*", "drop_table"],
        "approval_policy": {"tools": {"write_.*": "approve"}},
    }
    async with Gateway({**config, "servers": {"files": files}}, files_and_bank()) as gate:
        await gate.advance(5)
        found = await unmatched(gate)
    assert {place: message.rpartition("mean ")[2] for place, message in found.items()} == {
        "governance.force_required[0]": "governance.force_required[0] `slow_.*` matches none of 6 tools",
        "profiles.p.tool_denylist[0]": "`delete_file`",
        "scopes.default.tool_allowlist[0]": "`read_*`",
        "scopes.default.tool_allowlist[1]": "`getUser`",
        "scopes.default.tool_denylist[0]": "`*_file`",
        "servers.files.expose.tools[0]": "`delete_*`",
        "servers.files.allowed_tools[1]": "servers.files.allowed_tools[1] `drop_table` matches none of 5 tools",
        "servers.files.approval_policy.tools": "`write_*`",
    }


@virtual_time
async def test_correct_rules_are_not_named() -> None:
    rules = ["delete_*", "files:delete_file", "*_table", "run_script", "taskgate:add_server", "resource:file:///etc/*"]
    async with Gateway(with_rules(*rules, "prompt:ask_*"), files_and_bank()) as gate:
        await gate.advance(5)
        assert (lines(gate), await unmatched(gate)) == ([], {})


@virtual_time
async def test_line_is_written_once_and_again_after_a_change() -> None:
    servers = files_and_bank()
    async with Gateway(with_rules("wipe_.*", "delete_*"), servers) as gate:
        await gate.advance(5)
        assert lines(gate) == ["rules[0] `wipe_.*` matches none of 6 tools"]
        servers["files"].notify("notifications/tools/list_changed")
        await gate.advance(2000)
        assert len(lines(gate)) == 1, "a refresh without a change"
        servers["files"].tool("read_all", _done)
        servers["files"].notify("notifications/tools/list_changed")
        await gate.advance(5)
        assert len(lines(gate)) == 1, "another tool that the rule does not match"
        assert "of 7 tools" in (await unmatched(gate))["rules[0]"]
        servers["bank"].tool("wipe_account", _done)
        servers["bank"].notify("notifications/tools/list_changed")
        await gate.advance(5)
        assert lines(gate)[1:] == ["rules[0] `wipe_.*` matches none of 8 tools; did you mean `wipe_*`"]
        servers["bank"].tool("wipe_.x", _done)
        servers["bank"].notify("notifications/tools/list_changed")
        await gate.advance(5)
        assert (await unmatched(gate), len(lines(gate))) == ({}, 2)
        servers["bank"].withdraw("wipe_.x")
        servers["bank"].notify("notifications/tools/list_changed")
        await gate.advance(5)
        assert len(lines(gate)) == 3


@virtual_time
async def test_reload_reports_changed_rules_only() -> None:
    async with Gateway(with_rules("wipe_.*"), files_and_bank()) as gate:
        await gate.advance(5)
        await gate.reload(with_rules("wipe_.*", "delet_*"))
        await gate.advance(5)
        assert [line.partition(" ")[0] for line in lines(gate)] == ["rules[0]", "rules[1]"]
        await gate.reload(with_rules("delete_*"))
        await gate.advance(5)
        assert (await unmatched(gate), len(lines(gate))) == ({}, 2)


@virtual_time
async def test_stored_lists_are_examined_after_a_restart() -> None:
    async with Gateway(with_rules("wipe_.*"), files_and_bank()) as gate:
        await gate.advance(60)
        await gate.restart()
        await gate.advance(60)
        assert len(lines(gate)) == 2
        assert list(await unmatched(gate)) == ["rules[0]"]


@virtual_time
async def test_server_that_is_down_causes_no_false_alarm() -> None:
    servers = files_and_bank()
    servers["bank"].on("initialize", _refuse)
    async with Gateway(with_rules("drop_*", "bank:drop_table", "files:delete_.*"), servers) as gate:
        await gate.advance(60)
        assert [line.partition(" ")[0] for line in lines(gate)] == ["rules[2]"]
        servers["bank"].as_usual("initialize")
        await gate.advance(200)
        assert any(line.event == "server listed" and line.facts["server"] == "bank" for line in gate.log)
        assert [line.partition(" ")[0] for line in lines(gate)] == ["rules[2]"]
        await servers["bank"].stop()
        await gate.advance(600)
        assert list(await unmatched(gate)) == ["rules[2]"]


@virtual_time
async def test_list_that_fails_causes_no_false_alarm() -> None:
    servers = files_and_bank()
    servers["bank"].on("tools/list", _refuse)
    async with Gateway(with_rules("drop_.*"), servers) as gate:
        await gate.advance(10)
        assert lines(gate) == []
        servers["bank"].as_usual("tools/list")
        await gate.advance(200)
        assert lines(gate) == ["rules[0] `drop_.*` matches none of 6 tools; did you mean `drop_*`"]


def offer(**lists: list[str]) -> Offer:
    kinds = {"tools": EntryKind.TOOL, "prompts": EntryKind.PROMPT, "resources": EntryKind.RESOURCE}
    kinds["templates"] = EntryKind.TEMPLATE
    entries = {
        kinds[key]: tuple(CatalogEntry(kinds[key], "files", name, raw({})) for name in names)
        for key, names in lists.items()
    }
    return Offer(entries, {})


def test_names_of_a_list_that_is_not_complete_are_not_known() -> None:
    every = offer(tools=["a"], prompts=["b"], resources=["r:c"])
    assert names_by_kind(every) == {
        PatternKind.TOOL: ["a"],
        PatternKind.PROMPT: ["b"],
        PatternKind.RESOURCE: ["r:c"],
    }
    assert names_by_kind(offer()) == {kind: [] for kind in (PatternKind.TOOL, PatternKind.PROMPT, PatternKind.RESOURCE)}
    assert names_by_kind(replace(every, complete=False)) == {}
    failed = replace(every, failed={EntryKind.TOOL: UpstreamError("list_failed", "no")})
    assert PatternKind.TOOL not in names_by_kind(failed)
    assert PatternKind.PROMPT in names_by_kind(failed)


def test_tools_beyond_a_limit_are_names_too() -> None:
    every = offer(tools=["a"])
    assert names_by_kind(replace(every, omitted=OmittedTools(frozenset({"b"}))))[PatternKind.TOOL] == ["a", "b"]
    assert PatternKind.TOOL not in names_by_kind(replace(every, omitted=OmittedTools(cut=True)))


def test_resources_of_a_server_with_templates_are_not_known() -> None:
    with_templates = offer(resources=["r:c"], templates=["r:{x}"])
    assert PatternKind.RESOURCE not in names_by_kind(with_templates)
    failed = replace(offer(resources=["r:c"]), failed={EntryKind.TEMPLATE: UpstreamError("list_failed", "no")})
    assert PatternKind.RESOURCE not in names_by_kind(failed)


def test_disabled_server_is_no_reason_to_wait() -> None:
    records = [RegistryRecord("files"), RegistryRecord("off", enabled=False), RegistryRecord("drained", enabled=False)]
    records.append(RegistryRecord("down", skipped=SkipReason.ENV_MISSING))
    listed = listed_names(Registry.build(records), {"files": offer(tools=["a"]), "drained": offer(tools=["d"])})
    assert listed.keys() == {"files", "drained", "down"}
    assert listed["down"] == {}
