"""Claude Desktop: `claude_desktop_config.json`, which starts programs only and knows no variables."""

from __future__ import annotations

from taskgate.config.clients.client import CannotInstall, Client, Gateway, Host, Place, Variables, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    return [Place(host.settings() / "Claude" / "claude_desktop_config.json", ("mcpServers",), main=True)]


def _write(gateway: Gateway) -> dict[str, object]:
    if gateway.url:
        raise CannotInstall("Claude Desktop's file starts programs only; install without --url")
    return usual_entry(gateway)


CLAUDE_DESKTOP = Client(
    "claude-desktop", "Claude Desktop", ("claude-desktop",), _places, read_usual, _write, Variables.NONE
)
