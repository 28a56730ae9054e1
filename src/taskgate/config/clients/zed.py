"""Zed: `context_servers` in `settings.json`, in a newer flat shape and an older one with the program in a map."""

from __future__ import annotations

from taskgate.config.clients.client import Client, Entry, Gateway, Host, Place, Variables, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    folder = host.settings() / "Zed" if host.platform == "win32" else host.home / ".config" / "zed"
    if host.platform not in ("win32", "darwin"):
        folder = host.settings() / "zed"
    return [
        Place(folder / "settings.json", ("context_servers",), main=True),
        Place(host.folder / ".zed" / "settings.json", ("context_servers",)),
    ]


def _read(entry: Entry) -> Entry:
    command = entry.get("command")
    if isinstance(command, dict):
        entry = {**entry, **command, "command": command.get("path")}
    return read_usual(entry)


def _write(gateway: Gateway) -> Entry:
    return usual_entry(gateway) if gateway.url else {"source": "custom", **usual_entry(gateway), "env": {}}


ZED = Client("zed", "Zed", ("zed", "zeditor"), _places, _read, _write, Variables.NONE)
