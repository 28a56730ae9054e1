"""Servers in every form that people paste: our own, mcpServers, VS Code, sources."""

from __future__ import annotations

import json

import pytest
from tests.harness.raised import raises_problem

from taskgate.config import LoadedConfig, load_text
from taskgate.core.settings.servers import Server


def _load(text: str) -> LoadedConfig:
    return load_text(text, "t.yaml", environment={})


def _server(text: str, name: str = "x") -> Server:
    return _load(text).root.servers[name]


def test_a_pasted_block_of_mcp_servers_is_read_with_a_warning_for_the_clients_own_keys() -> None:
    pasted = {
        "mcpServers": {
            "GitHub MCP": {
                "command": "npx",
                "args": ["-y", "server@1.0.0"],
                "env": {"K": "v"},
                "disabled": True,
                "autoApprove": [],
            },
            "web": {"type": "streamable-http", "url": "https://example.test/mcp", "headers": {"A": "b"}},
            "old": {"type": "sse", "url": "https://example.test/sse"},
        }
    }
    loaded = _load(json.dumps(pasted))
    servers = loaded.root.servers
    assert set(servers) == {"GitHub-MCP", "web", "old"}
    assert (servers["GitHub-MCP"].command, servers["GitHub-MCP"].enabled) == ("npx", False)
    assert (servers["web"].transport, servers["old"].transport) == ("http", "sse")
    assert [w.key for w in loaded.warnings] == ["mcpServers.GitHub MCP", "mcpServers.GitHub MCP.autoApprove"]


def test_a_block_pasted_under_servers_is_unwrapped() -> None:
    assert _server("servers: {mcpServers: {x: {command: c}}, y: {command: d}}").command == "c"


def test_vs_code_servers_with_a_type_are_read() -> None:
    text = """
    inputs: [{id: token, type: promptString}]
    servers:
      x: {type: stdio, command: npx, args: [a@1], gallery: true}
      y: {type: http, url: "https://example.test/mcp"}
      z: {type: http, url: "https://example.test/mcp", headers: {A: "${input:token}"}}
    """
    loaded = _load(text)
    assert {name: s.transport for name, s in loaded.root.servers.items()} == {"x": "stdio", "y": "http"}
    assert [(item.server, item.reason, item.detail) for item in loaded.skipped] == [("z", "env_missing", "input:token")]
    assert [w.key for w in loaded.warnings] == ["servers.x.gallery", "inputs"]


def test_sources_are_read() -> None:
    text = """
    sources:
      - {id: x, kind: mcp, url: "http://127.0.0.1:1/mcp", prefix: short, enabled: true,
         expose: {mode: blocklist, tools: [a]}}
      - {id: y, url: "http://127.0.0.1:1/mcp", enabled: false}
    """
    x = _server(text)
    assert (x.namespace, x.expose.mode, x.expose.tools) == ("short", "blocklist", ("a",))
    assert not _server(text, "y").enabled


@pytest.mark.parametrize(
    ("server", "wanted"),
    [
        ({"httpUrl": "http://127.0.0.1:1/"}, {"url": "http://127.0.0.1:1/"}),
        ({"serverUrl": "http://127.0.0.1:1/"}, {"url": "http://127.0.0.1:1/"}),
        ({"command": ["npx", "-y", "s"], "args": ["t"]}, {"command": "npx", "args": ("-y", "s", "t")}),
        ({"command": "c", "environment": {"A": "b"}}, {"env": {"A": "b"}}),
        ({"command": "c", "sampling": True}, {"sampling": "provider"}),
        ({"command": "c", "sampling": "off"}, {"sampling": "relay"}),
        ({"stdio": {"command": "c", "args": ["a"]}}, {"command": "c", "args": ("a",)}),
        ({"http": {"url": "http://127.0.0.1:1/"}}, {"url": "http://127.0.0.1:1/"}),
        ({"command": "c", "budgets": {"tool_timeout_ms": 0}}, {"budgets.tool_timeout_ms": None}),
        ({"command": "c", "allowed_tools": []}, {"allowed_tools": ()}),
        ({"command": "c", "approval_policy": "approve"}, {"approval_policy.default": "approve"}),
        ({"command": "c", "excludeTools": ["a"]}, {"expose.mode": "blocklist", "expose.tools": ("a",)}),
        ({"command": "c", "includeTools": ["a"]}, {"expose.mode": "allowlist", "expose.tools": ("a",)}),
    ],
)
def test_foreign_shapes_become_ours(server: dict[str, object], wanted: dict[str, object]) -> None:
    found = _server(json.dumps({"servers": {"x": server}}))
    for path, value in wanted.items():
        here: object = found
        for step in path.split("."):
            here = getattr(here, step)
        assert here == value


@pytest.mark.parametrize(
    ("command", "args", "warns"),
    [
        ("npx", ["-y", "@scope/server"], True),
        ("npx", ["-y", "server"], True),
        ("/usr/bin/uvx", ["server"], True),
        ("npx", ["-y", "@scope/server@1.2.3"], False),
        ("uvx", ["server==1.2"], False),
        ("npx", ["./local"], False),
        ("python", ["server"], False),
        ("npx", [], False),
    ],
)
def test_unpinned_package_causes_warning(command: str, args: list[str], warns: bool) -> None:
    loaded = _load(json.dumps({"servers": {"x": {"command": command, "args": args}}}))
    assert any("newest version" in warning.message for warning in loaded.warnings) == warns


def test_one_id_in_two_blocks_is_refused() -> None:
    with raises_problem("mcpServers.X", "t.yaml:1:11"):
        _load("servers: {x: {command: a}}\nmcpServers: {X: {command: b}}\n")


def test_merge_keys_and_custom_top_level_keys_are_supported() -> None:
    text = "x-base: &b {command: c, tags: [t]}\nservers:\n  x: {<<: *b, tags: [u]}\n  y: {<<: [*b]}\n"
    assert (_server(text).tags, _server(text, "y").tags) == (("u",), ("t",))
