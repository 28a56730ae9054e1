"""Servers that only their client can start stay in its configuration, and `install` reports them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.config.clients.client import Gateway, Host
from taskgate.config.clients.found_servers import gather
from taskgate.config.clients.install_plan import plan_takeover
from taskgate.config.clients.known import client_named

GATEWAY = Gateway(("/bin/taskgate", "stdio"))
STAYING: dict[str, tuple[str, dict[str, Any]]] = {
    "extension": ("zed", {"source": "extension", "settings": {"key": "x"}}),
    "input": ("vscode", {"command": "npx", "args": ["x"], "env": {"KEY": "${input:key}"}}),
    "env_file": ("vscode", {"command": "npx", "args": ["x"], "envFile": "${workspaceFolder}/.env"}),
    "oauth": ("claude-code", {"type": "http", "url": "https://x.test/mcp", "oauth": {"clientId": "c"}}),
}


@pytest.mark.parametrize("kind", STAYING)
def test_a_client_only_server_stays_and_the_others_move(kind: str, tmp_path: Path) -> None:
    name, entry = STAYING[kind]
    client = client_named(name)
    host = Host(tmp_path, tmp_path / "project", "linux", {})
    (place,) = [place for place in client.places(host) if place.main]
    place.path.parent.mkdir(parents=True, exist_ok=True)
    tree: dict[str, Any] = {"moves": {"command": "cat"}, "stays": entry}
    for key in reversed(place.pointer):
        tree = {key: tree}
    place.path.write_text(json.dumps(tree))
    gathered = gather([client], host)
    assert [found.name for found in gathered.found] == ["moves"]
    (note,) = gathered.notes
    assert '"stays"' in note
    assert "bypasses the gateway" in note
    (change,) = [change for change in plan_takeover(client, host, GATEWAY) if change.path == place.path]
    after: Any = json.loads(change.after)
    for key in place.pointer:
        after = after[key]
    assert set(after) == {"taskgate", "stays"}
    assert after["stays"] == entry


@pytest.mark.parametrize(
    ("entry", "auth"),
    [
        ({"type": "http", "url": "https://x.test/mcp"}, {"type": "authorization_code"}),
        ({"type": "http", "url": "https://x.test/mcp", "headers": {"authorization": "Bearer t"}}, None),
        ({"type": "http", "url": "http://127.0.0.1:9/mcp"}, None),
        ({"command": "x"}, None),
    ],
)
def test_a_server_that_its_client_may_log_in_to_keeps_a_way_to_log_in(
    entry: dict[str, Any], auth: dict[str, str] | None, tmp_path: Path
) -> None:
    host = Host(tmp_path, tmp_path / "project", "linux", {})
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    gathered = gather([client_named("claude-code")], host)
    (found,) = gathered.found
    assert found.server.get("auth") == auth
    assert any("taskgate servers login s" in note for note in gathered.notes) == (auth is not None)
