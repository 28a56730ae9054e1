"""`taskgate scopes` and `taskgate tools --format openai`, as people and scripts run them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end
from tests.scopes.scope_client import STATEFUL, opened, scope, server

from taskgate.cli.root import build_app

CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {
        "files": server(
            "files", "read", "delete", "hide.me", tags=["local"], expose={"mode": "blocklist", "tools": ["hide*"]}
        ),
        "mail": server("mail", "send", "drop_all"),
        "gone": {"command": "/nonexistent/program"},
        "envy": {"url": "http://127.0.0.1:1/${TASKGATE_TEST_UNSET_VARIABLE}"},
    },
    "governance": {"rules": [{"match": "drop_*", "action": "deny"}]},
    "scopes": {
        "default": scope("*"),
        "review": scope("files", allowed_servers=["files", "mail"], tool_denylist=["delete"]),
        "off": {"default_servers": ["*"], "enabled": False},
    },
}


def taskgate(folder: Path, *arguments: str, config: dict[str, Any] | None = None) -> tuple[int, str, str]:
    file = folder / "taskgate.yaml"
    file.write_text(yaml.safe_dump(config or CONFIG))
    env = {"TASKGATE_STATE_DIR": str(folder), "COLUMNS": "200"}
    done = CliRunner().invoke(build_app(), [*arguments, "-c", str(file)], env=env)
    return done.exit_code, done.stdout, done.stderr


def facts(out: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    rows = [json.loads(line) for line in out.splitlines()]
    return {(row["server"], row["tool"]): row for row in rows}


def test_the_list_shows_every_scope_with_its_address_and_servers(tmp_path: Path) -> None:
    code, out, _ = taskgate(tmp_path, "scopes", "list", "--json")
    rows = {row["scope"]: row for row in map(json.loads, out.splitlines())}
    assert code == 0
    assert rows["default"]["address"] == "/mcp"
    assert rows["review"]["servers"] == ["files"]
    assert rows["off"]["enabled"] is False
    code, out, _ = taskgate(tmp_path, "scopes", "list")
    assert code == 0
    assert "/mcp/review" in out


def test_a_scope_is_explained_from_the_file_alone(tmp_path: Path) -> None:
    code, out, _ = taskgate(tmp_path, "scopes", "explain", "review", "--json")
    rows = facts(out)
    assert code == 0
    assert rows["files", None]["seen"] is True
    reasons = {server: rows[server, None]["reason"] for server in ("mail", "gone", "envy")}
    assert reasons == {"mail": "not_selected", "gone": "not_allowed", "envy": "not_allowed"}


def test_connecting_explains_every_tool_too(tmp_path: Path) -> None:
    code, out, _ = taskgate(tmp_path, "scopes", "explain", "default", "--connect", "--json")
    rows = facts(out)
    assert code == 0
    assert rows["files", "read"]["name"] == "files__read"
    assert rows["files", "hide.me"]["reason"] == "hidden"
    assert rows["mail", "drop_all"]["reason"] == "rule_denied"
    assert rows["gone", None]["reason"] == "list_failed"
    assert rows["envy", None]["reason"] == "env_missing"
    code, out, _ = taskgate(tmp_path, "scopes", "explain", "review", "--connect", "--json")
    assert facts(out)["files", "delete"]["reason"] == "tool_denied"


def test_narrowing_can_be_tried_and_invalid_narrowing_is_refused(tmp_path: Path) -> None:
    explain = ("scopes", "explain", "review", "--json")
    code, out, _ = taskgate(tmp_path, *explain, "--servers", "mail")
    assert code == 0
    assert facts(out)["files", None]["reason"] == "not_requested"
    code, out, _ = taskgate(tmp_path, *explain, "--servers", "gone")
    refused = json.loads(out)
    assert (code, refused["exit_code"], refused["error_type"]) == (4, 4, "not_allowed")
    assert "does not allow" in refused["error"]
    assert taskgate(tmp_path, *explain, "--tools", "[x")[0] == 2
    code, _, err = taskgate(tmp_path, "scopes", "explain", "revew")
    assert code == 8
    assert "Did you mean review?" in err
    assert "review" in err


def test_plain_names_that_are_known_to_collide_are_an_error_at_load(tmp_path: Path) -> None:
    servers = {
        "one": server("one", "read", allowed_tools=["read", "write"]),
        "two": server("two", "read", allowed_tools=["read"]),
    }
    config = {"schema": 1, "servers": servers, "scopes": {"default": scope("*", names="plain")}}
    code, _, err = taskgate(tmp_path, "check", config=config)
    assert code == 2
    assert 'servers "one" and "two" both have the tool "read"' in err
    config["scopes"] = {"default": scope("*", names="plain", tool_denylist=["two:read"])}
    assert taskgate(tmp_path, "check", config=config)[0] == 0


@pytest.mark.parametrize(
    ("both", "more", "collide"),
    [
        pytest.param({"servers": ["one", "two"]}, {}, True, id="servers of the profile"),
        pytest.param({"tags": ["slow"]}, {}, True, id="tags of the profile"),
        pytest.param({"servers": ["one"]}, {}, False, id="only one of them"),
        pytest.param({"servers": ["*"], "tool_denylist": ["two:read"]}, {}, False, id="denied by the profile"),
        pytest.param({"servers": ["*"], "tool_allowlist": ["write"]}, {}, False, id="not allowed by the profile"),
        pytest.param({"servers": ["*"]}, {"profile_overrides": {"servers": ["one"]}}, False, id="overridden"),
        pytest.param({"servers": ["one"]}, {"allowed_servers": ["*"]}, True, id="only if a session asks"),
    ],
)
def test_plain_names_that_collide_through_a_profile_are_found_at_load(
    tmp_path: Path, both: dict[str, Any], more: dict[str, Any], collide: bool
) -> None:
    tags = {"allowed_tools": ["read"], "tags": ["slow"]}
    config = {
        "schema": 1,
        "servers": {"one": server("one", "read", **tags), "two": server("two", "read", **tags)},
        "profiles": {"base": both, "review": {"extends": "base"}},
        "scopes": {"default": {"profile": "review", "names": "plain", **more}},
    }
    code, _, err = taskgate(tmp_path, "check", config=config)
    assert code == (2 if collide else 0), err
    if collide:
        assert re.search(r'taskgate.yaml:\d+:\d+: scopes.default.names: servers "one" and "two" both have', err), err


def test_servers_may_be_named_by_globs(tmp_path: Path) -> None:
    config = {**CONFIG, "scopes": {"default": scope("fi*", allowed_servers=["fi*", "ma?l"]), "x": scope("nothing*")}}
    code, out, err = taskgate(tmp_path, "scopes", "list", "--json", config=config)
    assert code == 0, err
    assert json.loads(out.splitlines()[0])["servers"] == ["files"]


async def test_the_tools_of_a_scope_are_exported_as_functions(tmp_path: Path) -> None:
    async with running_gateway(CONFIG, tmp_path) as gateway, opened(f"{gateway.url}/review", STATEFUL) as caller:
        command = [sys.executable, "-m", "taskgate", "tools", "--gateway", gateway.base, "--scope", "review"]
        code, out, err = await run_to_end([*command, "--format", "openai"])
        assert code == 0, err
        functions = json.loads(out)
        assert [entry["function"]["name"] for entry in functions] == ["files__read"]
        assert functions[0]["type"] == "function"
        assert "path" in functions[0]["function"]["parameters"]["properties"]
        assert (await caller.call(functions[0]["function"]["name"])).text == "files:read"
