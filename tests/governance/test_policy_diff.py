"""`taskgate policy diff` lists what changes between two files, for whom, and ends with a code of its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.commands import command
from tests.harness.gateway import running_gateway
from tests.scopes.scope_client import scope, server

from taskgate.cli.exit_codes import ExitCode

TOOLS = ["read_file", "delete_file", "drop_file", "Drop_file"]


def token(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}


CONFIG: dict[str, Any] = {
    "servers": {"files": {"command": "/nonexistent/program"}, "mail": {"command": "/nonexistent/program"}},
    "governance": {"rules": [{"match": "delete_*", "action": "approve", "approval": "ops"}]},
    "approval": {"ops": {"approvals_needed": 2}, "money": {}},
    "tokens": [token("ann", roles=["dev"]), token("bob", scope="team"), token("eve", roles=["approver"], may_call=False)],
    "scopes": {"default": scope("*"), "team": scope("files")},
}  # fmt: skip


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lists = folder / "lists.json"
        self.lists.write_text(json.dumps({"files": TOOLS, "mail": {"tools": ["send"], "prompts": [], "resources": []}}))

    def write(self, name: str, config: dict[str, Any]) -> str:
        file = self.folder / name
        file.write_text(yaml.safe_dump({"schema": 1, **config}))
        return str(file)

    async def diff(
        self, new: dict[str, Any], *words: str, old: dict[str, Any] | None = None, lists: bool = True
    ) -> tuple[int, str, str]:
        """Compare with `old`, by default CONFIG; the keys of `new` replace those of `old`."""
        before = CONFIG if old is None else old
        names = ("--lists", str(self.lists)) if lists else ()
        files = self.write("old.yaml", before), self.write("new.yaml", {**before, **new})
        return await command("policy", "diff", *files, *names, *words)

    async def changes(self, new: dict[str, Any], *words: str, **more: Any) -> list[str]:
        code, out, err = await self.diff(new, *words, **more)
        lines = out.splitlines()
        assert code == (ExitCode.DIFFERENT if lines else ExitCode.OK), err
        return lines


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def rules(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"governance": {"rules": list(rules), **more}}


HOLD = CONFIG["governance"]["rules"][0]


async def test_same_decisions_end_with_0(files: Files) -> None:
    assert await files.changes({}) == []
    same = rules({**HOLD, "match": "never_*"}, {**HOLD, "reason": "deletes for good"})
    assert await files.changes(same) == []


async def test_changed_decision_is_one_line_and_ends_with_10(files: Files) -> None:
    lines = await files.changes(rules({"match": "read_*", "action": "deny"}, HOLD))
    assert lines == [
        "files:read_file  forward (defaults) -> deny at rules: denied by rule (rules[0] read_*)  callers: all"
    ]
    code, _, err = await files.diff(rules({"match": "read_*", "action": "deny"}, HOLD))
    assert (code, "1 change" in err) == (10, True)


async def test_other_workflow_and_weaker_workflow_are_changes(files: Files) -> None:
    (line,) = await files.changes(rules({**HOLD, "approval": "money"}))
    assert "workflow ops (rules[0] delete_*) -> hold for the approval workflow money" in line
    (line,) = await files.changes({"approval": {"ops": {}, "money": {}}})
    assert line.endswith("; approvals_needed 2 -> 1  callers: all")


async def test_other_cedar_policies_are_a_change(files: Files) -> None:
    for name, action in (("a.cedar", "Forward"), ("b.cedar", "Approve")):
        text = f'permit (principal, action == Taskgate::Action::"{action}", resource);'
        (files.folder / name).write_text(text)
    asks = rules({"match": "read_*", "action": "policy"})
    old = {**CONFIG, **asks, "cedar": {"policies": ["a.cedar"]}}
    assert await files.changes({"cedar": {"policies": ["./a.cedar"]}}, old=old) == []
    (line,) = await files.changes({"cedar": {"policies": ["b.cedar"]}}, old=old)
    assert "; with other policies" in line


async def test_change_in_one_scope_names_it(files: Files) -> None:
    scopes = {"default": {**scope("*"), "tool_denylist": ["read_*"]}, "team": scope("files")}
    (line,) = await files.changes({"scopes": scopes})
    assert line.startswith("files:read_file  forward (defaults) -> deny at visibility: tool_denied")
    assert line.endswith("callers: all  scopes: default")


async def test_names_that_look_alike_get_the_strictest_decision(files: Files) -> None:
    lines = await files.changes(rules(HOLD, {"match": "drop_*", "action": "deny"}))
    assert [line.partition("  ")[0] for line in lines] == ["files:drop_file", "files:Drop_file"]
    scopes = {"default": {**scope("*"), "tool_denylist": ["drop_*"]}, "team": scope("files")}
    lines = await files.changes({"scopes": scopes})
    assert [line.partition("  ")[0] for line in lines] == ["files:drop_file", "files:Drop_file"]


async def test_forced_tasks_and_removed_servers_are_changes(files: Files) -> None:
    (line,) = await files.changes(rules(HOLD, force_required=["read_*"]))
    assert "-> forward (defaults), only as a task" in line
    (line,) = await files.changes({"servers": {"files": CONFIG["servers"]["files"]}}, lists=True)
    assert line.startswith("mail:send  forward (defaults) -> deny at visibility: unknown_server")


async def test_access_of_callers_is_compared(files: Files) -> None:
    tokens = [token("ann", roles=["dev"], scope="default"), token("zoe"), *CONFIG["tokens"][1:]]
    assert await files.changes({"tokens": tokens}) == [
        "scope default  no access -> access  callers: zoe",
        "scope team  access -> no access  callers: ann",
        "scope team  no access -> access  callers: zoe",
    ]
    team = {**scope("files"), "require": {"groups": ["sre"]}}
    lines = await files.changes({"scopes": {"default": scope("*"), "team": team}})
    assert lines == ["scope team  access -> no access  callers: ann, bob"]
    assert await files.changes({"auth": {"anonymous": "team"}}) == [
        "scope team  no access -> access  callers: anonymous"
    ]


async def test_rule_for_scripts_is_a_change_only_where_scripts_run(files: Files) -> None:
    in_scripts = rules(HOLD, {"match": "read_*", "from": "script", "action": "deny"})
    assert await files.changes(in_scripts) == []
    scopes = {"default": scope("*"), "team": {**scope("files"), "scripts": "on"}}
    lines = await files.changes(in_scripts, old={**CONFIG, "scopes": scopes})
    assert len(lines) == 1
    assert lines[0].startswith("files:read_file in scripts  forward (defaults) -> deny")
    assert lines[0].endswith("callers: all  scopes: team")
    (line,) = await files.changes(
        rules(HOLD, {"match": "taskgate:run_script", "action": "approve"}), old={**CONFIG, "scopes": scopes}
    )
    assert line.startswith("taskgate:run_script  forward")


async def test_without_lists_examples_of_patterns_are_compared(files: Files) -> None:
    code, out, err = await files.diff(
        rules(
            HOLD, {"match": "[dx]rop_?", "action": "deny"}, {"match": "files:resource:file:///etc/*", "action": "deny"}
        ),
        lists=False,
    )
    assert code == 10
    assert [line.partition("  ")[0] for line in out.splitlines()] == [
        "files:[dx]rop_? (for example xrop_x)",
        "files:resource:file:///etc/* (for example file:///etc/x)",
        "mail:[dx]rop_? (for example xrop_x)",
    ]
    assert "files, mail" in err
    lines = await files.changes(rules(HOLD, defaults={"action": "deny"}), lists=False)
    assert {line.partition("  ")[0] for line in lines} >= {"files:* (for example any_other_tool)"}
    assert not any("delete_" in line for line in lines)


async def test_json_has_every_field(files: Files) -> None:
    code, out, _ = await files.diff(rules({"match": "read_*", "action": "deny"}, HOLD), "--json")
    found = json.loads(out)
    assert code == 10
    (row,) = found["changes"]
    assert (row["server"], row["name"], row["callers"], row["all_callers"]) == (
        "files",
        "read_file",
        ["ann", "bob"],
        True,
    )
    assert (row["scopes"], row["all_scopes"], row["from_script"]) == (["default", "team"], True, False)
    assert found["callers"] == ["ann", "bob", "eve"]


async def test_server_without_its_variable_is_never_reported_as_unchanged(files: Files) -> None:
    skipped = {"files": {"command": "/nonexistent/program", "env": {"KEY": "${TASKGATE_TEST_UNSET_VARIABLE}"}}}
    old = {**CONFIG, "servers": skipped, "scopes": {}, "tokens": []}
    code, out, err = await files.diff(rules({"match": "read_*", "action": "deny"}), old=old)
    assert (code, out) == (10, "")
    assert "TASKGATE_TEST_UNSET_VARIABLE" in err
    code, out, _ = await files.diff({}, "--json", old=old)
    assert (code, json.loads(out)["names"], len(json.loads(out)["incomplete"])) == (10, 0, 1)


@pytest.mark.parametrize("broken", [0, 1])
async def test_faults_of_either_file_are_printed_as_check_prints_them(files: Files, broken: int) -> None:
    names = [files.write("old.yaml", CONFIG), files.write("new.yaml", CONFIG)]
    bad = files.write(("old.yaml", "new.yaml")[broken], {**CONFIG, **rules({"match": "x", "action": "denied"})})
    code, out, err = await command("policy", "diff", *names)
    assert (code, out) == (2, "")
    assert err == (await command("check", "-c", bad))[2]


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"files": 1}', '{"files": [1]}', '{"files": {"tols": []}}', '{"files": {"prompts": [{"title": "x"}]}}']
)  # fmt: skip
async def test_invalid_lists_are_refused(files: Files, text: str) -> None:
    files.lists.write_text(text)
    code, out, err = await files.diff({})
    assert (code, out) == (2, "")
    assert "lists.json" in err


async def test_lists_may_have_definitions_as_in_mcp(files: Files) -> None:
    resources: dict[str, Any] = {
        "resources": [{"uri": "file:///etc/passwd", "name": "p"}],
        "resourceTemplates": ["n://{id}"],
    }
    files.lists.write_text(
        json.dumps({"files": {"tools": [{"name": "read_file", "inputSchema": {}}], **resources}, "mail": []})
    )
    lines = await files.changes(rules(HOLD, {"match": "resource:*", "action": "deny"}))
    assert [line.partition("  ")[0] for line in lines if line.startswith("files:resource")] == [
        "files:resource:file:///etc/passwd",
        "files:resource:n://{id}",
    ]


async def test_connect_fetches_the_lists_of_both_versions(files: Files) -> None:
    old: dict[str, Any] = {
        "servers": {"files": server("files", "read_file", "delete_file"), "gone": server("gone", "stop")}
    }
    new: dict[str, Any] = {"servers": {"files": old["servers"]["files"], "away": {"command": "/nonexistent/program"}}}
    new |= rules({"match": "delete_*", "action": "deny"})
    code, out, err = await files.diff(new, "--connect", old=old, lists=False)
    lines = {line.partition("  ")[0]: line for line in out.splitlines()}
    assert code == 10
    assert lines["files:delete_file"].endswith("callers: all")
    assert "files:read_file" not in lines
    assert "gone:stop" in lines
    assert "away" in err


async def test_running_gateway_has_the_tools(files: Files, tmp_path: Path) -> None:
    config: dict[str, Any] = {"servers": {"files": server("files", "read_file", "delete_file")}}
    async with running_gateway(config, tmp_path / "gateway") as gateway:
        new = {**config, **rules({"match": "delete_*", "action": "deny"})}
        names = files.write("old.yaml", config), files.write("new.yaml", new)
        where = {"TASKGATE_STATE_DIR": str(gateway.state), "TASKGATE_TOKEN": ""}
        await command("tools", env={**where, "TASKGATE_URL": gateway.base})
        code, out, err = await command("policy", "diff", *names, "--gateway", gateway.base, env=where)
        assert (code, [line.partition("  ")[0] for line in out.splitlines()]) == (10, ["files:delete_file"]), err
        code, out, _ = await command("policy", "diff", *names, "--gateway", "127.0.0.1:1", env=where)
        assert code == 3
