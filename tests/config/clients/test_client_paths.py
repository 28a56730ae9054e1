"""For each client: the path of its settings, its servers in our format, and the entry of the gateway in its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.config import load_text
from taskgate.config.clients.client import CannotInstall, Gateway, Host
from taskgate.config.clients.found_servers import gather
from taskgate.config.clients.known import CLIENTS, UnknownClient, client_named, client_of_program
from taskgate.config.clients.server_entry import is_gateway

HOME, WORK = Path("/home/me"), Path("/work")


def _main(name: str, platform: str, **environment: str) -> str:
    host = Host(HOME, WORK, platform, environment)
    return next(str(place.path) for place in CLIENTS[name].places(host) if place.main)


@pytest.mark.parametrize(
    ("name", "linux", "darwin"),
    [
        ("claude-code", ".claude.json", ".claude.json"),
        (
            "claude-desktop",
            ".config/Claude/claude_desktop_config.json",
            "Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
        ("vscode", ".config/Code/User/mcp.json", "Library/Application Support/Code/User/mcp.json"),
        ("codex", ".codex/config.toml", ".codex/config.toml"),
        ("zed", ".config/zed/settings.json", ".config/zed/settings.json"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", ".codeium/windsurf/mcp_config.json"),
        ("opencode", ".config/opencode/opencode.json", ".config/opencode/opencode.json"),
        ("cline", ".cline/data/settings/cline_mcp_settings.json", ".cline/data/settings/cline_mcp_settings.json"),
    ],
)
def test_each_client_has_its_settings_path_on_each_platform(name: str, linux: str, darwin: str) -> None:
    assert _main(name, "linux") == str(HOME / linux)
    assert _main(name, "darwin") == str(HOME / darwin)


def test_settings_paths_follow_the_environment_variables_of_clients() -> None:
    assert _main("codex", "linux", CODEX_HOME="/c") == "/c/config.toml"
    assert _main("claude-code", "linux", CLAUDE_CONFIG_DIR="/c") == "/c/.claude.json"
    assert _main("vscode", "linux", XDG_CONFIG_HOME="/c") == "/c/Code/User/mcp.json"
    assert _main("cline", "linux", CLINE_MCP_SETTINGS_PATH="/c/x.json") == "/c/x.json"
    assert _main("vscode", "win32", APPDATA="/roaming") == "/roaming/Code/User/mcp.json"
    assert _main("zed", "win32", APPDATA="/roaming") == "/roaming/Zed/settings.json"


URL = "https://example.test/mcp"
READ: list[tuple[str, str, dict[str, Any]]] = [
    (
        "claude-code",
        '{"mcpServers": {"s": {"type": "http", "url": "https://example.test/mcp", "headers": {"A": "${T:-x}"}}}}',
        {"url": URL, "headers": {"A": "${T:-x}"}, "transport": "http"},
    ),
    (
        "claude-code",
        '{"projects": {"FOLDER": {"mcpServers": {"s": {"command": "c", "env": {"N": 1}}}}}}',
        {"command": "c", "env": {"N": "1"}},
    ),
    (
        "claude-desktop",
        '{"mcpServers": {"s": {"command": "c", "args": ["${HOME}"]}}}',
        {"command": "c", "args": ["$${HOME}"]},
    ),
    (
        "cursor",
        '{"mcpServers": {"s": {"command": "c", "env": {"K": "${env:K}"}}}}',
        {"command": "c", "env": {"K": "${env:K}"}},
    ),
    (
        "vscode",
        '// hi\n{"servers": {"s": {"type": "sse", "url": "https://example.test/mcp",},}, "inputs": []}',
        {"url": URL, "transport": "sse"},
    ),
    (
        "codex",
        '[mcp_servers.s]\ncommand = "c"\nargs = ["a"]\nenabled = false\nenv_vars = ["T"]\ndisabled_tools = ["d"]\n',
        {
            "command": "c",
            "args": ["a"],
            "env": {"T": "${T}"},
            "enabled": False,
            "expose": {"mode": "blocklist", "tools": ["d"]},
        },
    ),
    (
        "codex",
        '[mcp_servers.s]\nurl = "https://example.test/mcp"\nbearer_token_env_var = "T"\nenv_http_headers = {X = "Y"}\n',
        {"url": URL, "headers": {"Authorization": "Bearer ${T}", "X": "${Y}"}},
    ),
    (
        "zed",
        '{"context_servers": {"s": {"source": "custom", "command": {"path": "c", "args": ["a"], "env": {"K": "v"}}}}}',
        {"command": "c", "args": ["a"], "env": {"K": "v"}},
    ),
    ("zed", '{"context_servers": {"s": {"command": "c", "args": []}}}', {"command": "c"}),
    (
        "windsurf",
        '{"mcpServers": {"s": {"serverUrl": "https://example.test/mcp", "disabled": true, "disabledTools": ["x"]}}}',
        {"url": URL, "enabled": False, "expose": {"mode": "blocklist", "tools": ["x"]}},
    ),
    (
        "opencode",
        '{"mcp": {"s": {"type": "local", "command": ["c", "a"], "environment": {"K": "{env:K}"}, "enabled": false}}}',
        {"command": "c", "args": ["a"], "env": {"K": "${K}"}, "enabled": False},
    ),
    ("opencode", '{"mcp": {"servers": {"s": {"type": "remote", "url": "https://example.test/mcp"}}}}', {"url": URL}),
    (
        "cline",
        '{"mcpServers": {"s": {"url": "https://example.test/mcp", "autoApprove": ["x"], "timeout": 60}}}',
        {"url": URL, "transport": "sse"},
    ),
    (
        "cline",
        '{"mcpServers": {"s": {"type": "streamableHttp", "url": "https://example.test/mcp"}}}',
        {"url": URL, "transport": "http"},
    ),
]


@pytest.mark.parametrize(("name", "text", "wanted"), READ)
def test_a_server_of_a_client_is_converted_to_our_form(
    name: str, text: str, wanted: dict[str, Any], tmp_path: Path
) -> None:
    host = Host(tmp_path / "home", tmp_path / "work", "linux")
    client = CLIENTS[name]
    path = next(place.path for place in client.places(host) if place.main)
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("FOLDER", str(host.folder)), encoding="utf-8")
    (found,) = gather([client], host).found
    # Our configuration determines the login, not the client's.
    shown = {key: value for key, value in found.server.items() if key != "auth"}
    assert (found.name, shown, found.path) == ("s", wanted, path)
    loaded = load_text(json.dumps({"servers": {"s": found.server}}), environment={"T": "t", "K": "k", "Y": "y"})
    assert list(loaded.root.servers) == ["s"]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_gateways_own_entry_is_recognised_when_read_back(name: str, tmp_path: Path) -> None:
    client = CLIENTS[name]
    for command in (("/venv/bin/taskgate", "stdio", "-c", "x"), ("python", "-m", "taskgate", "stdio")):
        assert is_gateway("anything", client.read(client.write(Gateway(command))))
    if name == "claude-desktop":
        with pytest.raises(CannotInstall, match="--url"):
            client.write(Gateway((), URL))
    else:
        assert is_gateway("taskgate", client.read(client.write(Gateway((), URL))))
    assert not is_gateway("files", {"command": "python", "args": ["-m", "taskgate.demo.files"]})


def test_a_broken_file_and_an_empty_entry_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    host = Host(tmp_path, tmp_path / "w", "linux")
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{oops")
    (tmp_path / ".claude.json").write_text('{"mcpServers": {"a": {}, "b": {"command": "c", "cwd": "sub"}, "n": 5}}')
    gathered = gather(CLIENTS.values(), host)
    assert [(item.name, item.server) for item in gathered.found] == [
        ("b", {"command": "c", "cwd": str(tmp_path / "w/sub")})
    ]
    assert len(gathered.notes) == 2


def test_clients_are_found_by_name_and_by_program() -> None:
    assert client_of_program("/usr/bin/claude").name == "claude-code"
    assert client_of_program("cursor-agent").name == "cursor"
    with pytest.raises(UnknownClient, match="--client"):
        client_of_program("vim")
    with pytest.raises(UnknownClient, match='"claude-code"'):
        client_named("claude-cod")
