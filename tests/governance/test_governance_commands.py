"""The commands around governance, as people and scripts run them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.governance.approval_setup import Setup, running_setup
from tests.governance.test_inbox_access import log_in
from tests.harness.commands import command
from tests.harness.programs import run_to_end

from taskgate.core.facts.table import FACTS

TASKGATE = [sys.executable, "-m", "taskgate"]


def environment(setup: Setup | None, token: str | None = None) -> dict[str, str]:
    env = {"TASKGATE_TOKEN": token or ""}
    if setup is not None:
        env |= {"TASKGATE_URL": setup.gateway.base, "TASKGATE_STATE_DIR": str(setup.gateway.state)}
    return env


async def run(*words: str, setup: Setup | None = None, token: str | None = None) -> tuple[int, str, str]:
    return await command(*words, env=environment(setup, token))


async def started(*words: str, setup: Setup | None = None) -> tuple[int, str, str]:
    """The same as a process of its own, as a script would."""
    return await run_to_end([*TASKGATE, *words], environment(setup))


async def test_approvals_are_listed_and_decided_on_the_command_line(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        code, out, err = await run("approvals", "list", setup=setup)
        assert (code, out) == (0, "")
        assert "No open approvals" in err
        waiting = asyncio.create_task(
            (await setup.stateful()).call("s__delete_it", {"path": "\x1b[31mred", "password": "p"})
        )
        (row,) = await setup.open_approvals()
        code, out, _ = await started("approvals", "list", "--json", setup=setup)
        assert [json.loads(line)["id"] for line in out.splitlines()] == [row["id"]]
        code, out, _ = await run("approvals", "show", row["id"], setup=setup)
        assert "\\u001b[31mred" in out
        assert "\x1b" not in out
        assert "Redacted here, but sent: password" in out
        assert (await run("approvals", "approve", row["id"], setup=setup, token="wrong"))[0] == 4
        assert (await run("approvals", "show", "ap_00000000000000000000000000", setup=setup))[0] == 8
        code, out, _ = await run("approvals", "approve", row["id"][-8:], "--json", setup=setup)
        assert (code, json.loads(out)["starts"]) == (0, True)
        assert "result" in await asyncio.wait_for(waiting, 120)
        code, out, err = await run("approvals", "deny", row["id"], "--reason", "late", setup=setup)
        assert code == 4
        assert "already" in err
        code, out, _ = await run("approvals", "list", "--all", "--json", setup=setup)
        assert json.loads(out.splitlines()[0])["state"] == "used"
        await check_audit_log_is_valid_until_changed(setup)
    assert (await started("approvals", "list", setup=setup))[0] == 3


async def check_audit_log_is_valid_until_changed(setup: Setup) -> None:
    where = ["-c", str(setup.gateway.config)]
    code, out, _ = await run("audit", "verify", *where, "--json", setup=setup)
    data = json.loads(out)
    assert (code, data["whole"]) == (0, True)
    code, out, _ = await run("audit", "export", *where, setup=setup)
    exported = setup.gateway.folder / "audit.jsonl"
    exported.write_text(out)
    rows = [json.loads(line)["entry"] for line in out.splitlines()]
    asked = next(row for row in rows if row["event"] == "approval_asked")
    assert asked["arguments"]["password"] == "[hidden]"
    assert next(row for row in rows if row["event"] == "approval_approved")["approvers"] == ["operator"]
    assert [row["executed"] for row in rows if row["event"] == "task_completed"] == ["yes"]
    assert (await run("audit", "verify", "--file", str(exported)))[0] == 0
    exported.write_text(out.replace('"decision":"held"', '"decision":"hold"', 1))
    assert (await run("audit", "verify", "--file", str(exported)))[0] == 9
    await setup.gateway.stop()
    head = json.loads((await run("audit", "verify", *where, "--json", setup=setup))[1])["head"]
    assert (await run("audit", "verify", *where, "--head", head, setup=setup))[0] == 0
    with sqlite3.connect(setup.gateway.state / "taskgate.db") as database:
        database.execute("DELETE FROM audit WHERE number = (SELECT max(number) FROM audit)")
    assert (await run("audit", "verify", *where, setup=setup))[0] == 9
    assert (await started("audit", "verify", *where, "--head", head, setup=setup))[0] == 9


async def test_policies_are_tried_without_the_server(tmp_path: Path) -> None:
    (tmp_path / "pay.cedar").write_text(
        'permit (principal in Taskgate::Role::"clerk", action == Taskgate::Action::"Forward", resource)\n'
        "when { context.arguments.amount <= 100 };\n"
    )
    config = tmp_path / "taskgate.yaml"
    config.write_text(
        "schema: 1\nservers: {reports: {url: 'http://127.0.0.1:9/mcp'}}\n"
        "governance: {rules: [{match: 'pay_*', action: policy}, {match: 'drop_*', action: deny},"
        " {match: 'delete_*', action: approve}]}\ncedar: {policies: [./pay.cedar]}\n"
    )
    where = ["-c", str(config), "--json"]
    for call, arguments, expected in (
        ("reports:pay_it", '{"amount": 5}', "forward"),
        ("reports:pay_it", '{"amount": 500}', "deny"),
        ("reports:pay_it", '{"amount": "5"}', "deny"),
        ("pay_it", "{}", "deny"),
        ("drop_it", "{}", "deny"),
        ("reports:delete_it", "{}", "approve"),
        ("resource:file:///x", "{}", "forward"),
    ):
        code, out, _ = await run("policy", "test", call, arguments, "--role", "clerk", "--expect", expected, *where)
        assert (code, json.loads(out)["action"]) == (0, expected), call
    assert (await run("policy", "test", "drop_it", "--expect", "forward", *where))[0] == 1
    assert (await run("policy", "test", "pay_it", '{"amount": 5, "Amount": 6}', *where))[0] == 2


CONDITIONS: dict[str, tuple[Any, list[str], list[str]]] = {
    # fact: (condition, options that meet it, options that do not)
    "server": ("bank", [], []),
    "tool": ("pay*", [], []),
    "kind": ("tool", [], []),
    "tags": ("prod", [], []),
    "risk": ("undeclared", [], []),
    "scope": ("narrow", ["--scope", "narrow"], []),
    "caller": ("ann", ["--caller", "ann"], ["--caller", "bob"]),
    "token": ("ann", ["--caller", "ann"], ["--caller", "eve"]),
    "role": ("intern", ["--role", "intern"], ["--role", "boss"]),
    "tenant": ("acme", ["--caller", "acme/eve"], ["--caller", "eve"]),
    "from_script": ("true", ["--from-script"], []),
    "client": ("cursor*", ["--client", "cursor-vscode"], ["--client", "zed"]),
    "generation": ("2026-07-28", ["--generation", "2026-07-28"], ["--generation", "2025-11-25"]),
    "time": ("22:00-06:00 Europe/Berlin", ["--at", "2026-07-28T23:30+02:00"], ["--at", "2026-07-28T19:59Z"]),
    "argument.amount": ("> 1000", ['{"amount": 1001}'], ['{"amount": 1000}']),
}


@pytest.mark.parametrize("fact", CONDITIONS)
async def test_every_fact_can_be_tried(tmp_path: Path, fact: str) -> None:
    condition, met, unmet = CONDITIONS[fact]
    rules = [
        {"match": "pay", "when": {fact: condition}, "action": "deny"},
        {"match": "pay_back", "when": {fact: {"not": condition}}, "action": "deny"},
    ]
    bank = {"url": "http://127.0.0.1:9/mcp", "tags": ["prod"]}
    tokens = [{"id": name, "sha256": letter * 64} for name, letter in (("ann", "a"), ("bob", "b"))]
    config = {
        "schema": 1,
        "servers": {"bank": bank},
        "governance": {"rules": rules},
        "scopes": {"default": {"default_servers": ["*"]}, "narrow": {"default_servers": ["*"]}},
        "tokens": tokens,
    }
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps(config))

    async def tried(name: str, options: list[str]) -> dict[str, Any]:
        code, out, _ = await run("policy", "test", name, *options, "--no-connect", "-c", str(file), "--json")
        assert code == 0
        return dict(json.loads(out))

    found = await tried("bank:pay", met)
    assert found["action"] == "deny"
    assert found["because"].startswith(fact)
    assert (await tried("bank:pay_back", met))["action"] == "forward"
    if unmet:
        assert (await tried("bank:pay", unmet))["action"] == "forward"


def test_every_fact_is_in_the_table_above() -> None:
    assert {name.partition(".")[0] for name in CONDITIONS} == set(FACTS)


async def test_what_remains_is_shown_and_what_is_not_known_is_named(tmp_path: Path) -> None:
    rules = [
        {"match": "pay", "when": {"client": "zed"}, "action": "deny"},
        {"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "approve"},
    ]
    file = tmp_path / "taskgate.yaml"
    servers = {"bank": {"url": "http://127.0.0.1:9/mcp"}}
    file.write_text(json.dumps({"schema": 1, "servers": servers, "governance": {"rules": rules}}))
    where = ["--no-connect", "-c", str(file)]
    call = ["policy", "test", "bank:pay", '{"amount": 5000}']
    code, out, err = await run(*call, *where, "--json")
    data = json.loads(out)
    assert (code, data["action"], data["because"]) == (0, "deny", "it cannot be ruled out: client is zed")
    assert "--client" in err
    assert data["residue"] == [
        [
            {"if": "client is zed", "action": "deny", "rule": "rules[0] pay"},
            {"if": "argument.amount > 1000", "action": "approve", "rule": "rules[1] pay", "workflow": "default"},
            {"if": "", "action": "forward", "rule": "defaults"},
        ]
    ]
    code, out, err = await run(*call, "--client", "vim", *where)
    assert out.splitlines()[0] == "approve"
    assert "if argument.amount > 1000, otherwise forward (defaults)" in out
    assert "--client" not in err
    out = (await run("policy", "test", "bank:other", *where, "--json"))[1]
    assert (json.loads(out)["residue"], json.loads(out)["because"]) == ([], "")


@pytest.mark.parametrize(
    "options", [["--at", "2026-07-28T23:30"], ["--at", "noon"], ["--generation", "2024-11-05"], ["--generation", ""]]
)
async def test_invalid_circumstances_are_rejected(options: list[str]) -> None:
    assert (await run("policy", "test", "x", *options))[0] == 2


async def test_tool_is_tried_by_the_name_that_clients_see(tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    server = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
    rules = [{"match": "delete_*", "action": "approve"}]
    config.write_text(json.dumps({"schema": 1, "servers": {"files": server}, "governance": {"rules": rules}}))
    code, out, _ = await run("policy", "test", "files__delete_file", '{"path": "a"}', "-c", str(config), "--json")
    data = json.loads(out)
    assert (code, data["action"], data["server"], data["name"]) == (0, "approve", "files", "delete_file")
    code, out, err = await run("policy", "test", "files__delete_fiel", "-c", str(config))
    assert (code, out) == (8, "")
    assert "files__delete_file" in err
    assert (await run("policy", "test", "files__delete_file", "[]", "-c", str(config)))[0] == 2


async def test_new_token_holds_no_role() -> None:
    code, out, _ = await run("token", "new", "ann", "--json")
    made = json.loads(out)
    assert (code, made["id"], made["roles"]) == (0, "ann", [])
    line = next(line for line in (await run("token", "new", "ann"))[2].splitlines() if "sha256" in line)
    assert yaml.safe_load(line) == [{"id": "ann", "sha256": yaml.safe_load(line)[0]["sha256"]}]
    code, out, _ = await run("token", "new", "ann", "--role", "approver", "--json")
    assert json.loads(out)["roles"] == ["approver"]
    assert (await run("token", "new", "operator"))[0] == 2


async def test_bad_policies_are_start_up_errors_with_file_and_line(tmp_path: Path) -> None:
    """Bad input: unreadable policy, unknown workflow."""
    (tmp_path / "bad.cedar").write_text("\n\npermit (principal, action, resource) when { nonsense ! };\n")
    config = tmp_path / "taskgate.yaml"
    config.write_text("schema: 1\nservers: {}\ncedar: {policies: [./bad.cedar]}\n")
    code, _, err = await started("check", "-c", str(config))
    assert code == 2
    assert "bad.cedar:3" in err
    (tmp_path / "bad.cedar").write_text('@approval("nobody")\npermit (principal, action, resource);\n')
    code, _, err = await run("check", "-c", str(config))
    assert code == 2
    assert "nobody" in err
    config.write_text(
        "schema: 1\nservers: {}\ngovernance: {rules: [{match: 'x', action: approve, approval: ghosts}]}\n"
    )
    code, _, err = await run("check", "-c", str(config))
    assert code == 2
    assert "taskgate.yaml:3" in err


async def test_misleading_characters_are_shown_in_changes_too(tmp_path: Path) -> None:
    """A change is what an approver reads first: a Cyrillic letter and a blank one in it are escaped, as in the arguments."""
    odd = "/home/\u0430dmin\u3164"
    first, second = {"path": "/home/admin", odd: odd}, {"path": odd, "admin": [odd]}
    async with running_setup(tmp_path) as setup:
        caller = await setup.stateful()
        waiting = asyncio.create_task(caller.call("s__delete_it", first))
        (row,) = await setup.open_approvals()
        await setup.approve(row["id"])
        assert "result" in await asyncio.wait_for(waiting, 120)
        waiting = asyncio.create_task(caller.call("s__delete_it", second))
        (row,) = await setup.open_approvals()
        (code, out, _) = await run("approvals", "show", row["id"], setup=setup)
        assert code == 0
        browser = await log_in(setup, setup.operator_token)
        paths = "/inbox", f"/approvals/{row['id']}"
        pages = [(await browser.get(setup.gateway.base + path)).text for path in paths]
        await browser.aclose()
        for text in (out, *pages):
            assert odd[6] not in text
            assert odd[-1] not in text
            assert text.count("\\u0430dmin\\u3164") >= 5
        await setup.deny(row["id"])
        await asyncio.wait_for(waiting, 120)
