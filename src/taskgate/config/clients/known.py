"""The clients we know, in the order they are offered."""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.claude_code import CLAUDE_CODE
from taskgate.config.clients.claude_desktop import CLAUDE_DESKTOP
from taskgate.config.clients.client import Client
from taskgate.config.clients.cline import CLINE
from taskgate.config.clients.codex import CODEX
from taskgate.config.clients.cursor import CURSOR
from taskgate.config.clients.opencode import OPENCODE
from taskgate.config.clients.vscode import VSCODE
from taskgate.config.clients.windsurf import WINDSURF
from taskgate.config.clients.zed import ZED
from taskgate.config.problems import did_you_mean

CLIENTS = {
    client.name: client
    for client in (CLAUDE_CODE, CLAUDE_DESKTOP, CURSOR, VSCODE, CODEX, ZED, WINDSURF, OPENCODE, CLINE)
}


class UnknownClient(Exception):
    """No client has that name; the message lists those we know."""


def client_named(name: str) -> Client:
    """The client of a name."""
    if name in CLIENTS:
        return CLIENTS[name]
    hint = did_you_mean(name, CLIENTS) or f"known are: {', '.join(CLIENTS)}"
    raise UnknownClient(f'"{name}" is not a client we know; {hint}')


def client_of_program(program: str) -> Client:
    """The client that a program belongs to."""
    stem = Path(program).name.removesuffix(".exe")
    for client in CLIENTS.values():
        if stem in client.programs:
            return client
    raise UnknownClient(f'"{stem}" is not a program we know; name its client with --client ({", ".join(CLIENTS)})')
