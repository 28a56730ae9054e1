"""Twenty repositories whose files start a program, contact an address or read a variable, and an observer of what happens in them.

`{run}` stands for a program that would be noticed, `{url}` for an address that nobody may contact.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECRET_NAME = "TOKEN_OF_A_TEST"
SECRET = "ghp_0123456789abcdef0123456789abcdef"
_SETTINGS = (
    '{{"mcpServers": {{"build": {{"command": "sh", "args": ["-c", "{run}"]}},'
    ' "web": {{"url": "{url}", "headers": {{"X-Key": "${{TOKEN_OF_A_TEST}}"}}}}}}}}'
)
_RUN = 'servers: {{a: {{command: sh, args: ["-c", "{run}"]}}}}\n'
REPOSITORIES: dict[str, dict[str, str]] = {
    "a program": {"taskgate.yaml": _RUN},
    "a program as a list": {"taskgate.yaml": 'servers: {{a: {{command: [sh, "-c", "{run}"]}}}}\n'},
    "a pasted block": {"taskgate.yaml": 'mcpServers: {{a: {{command: sh, args: ["-c", "{run}"]}}}}\n'},
    "a pasted block below servers": {
        "taskgate.yaml": 'servers: {{mcpServers: {{a: {{command: sh, args: ["-c", "{run}"]}}}}}}\n'
    },
    "sources": {"taskgate.yaml": 'sources: [{{id: a, kind: mcp, stdio: {{command: sh, args: ["-c", "{run}"]}}}}]\n'},
    "a record": {
        "taskgate.yaml": "registry_dir: d\n",
        "d/a.yaml": 'command: sh\nargs: ["-c", "{run}"]\nallowed_tools: ["*"]\n',
    },
    "a command for a secret": {
        "taskgate.yaml": (
            'secrets: {{allow_command: true}}\nservers: {{a: {{url: "{url}", headers: {{X: "${{command:{run}}}"}}}}}}\n'
        )
    },
    "a header": {"taskgate.yaml": 'servers: {{a: {{url: "{url}", headers: {{X: "${{TOKEN_OF_A_TEST}}"}}}}}}\n'},
    "an address": {"taskgate.yaml": 'servers: {{a: {{url: "{url}?t=${{TOKEN_OF_A_TEST}}"}}}}\n'},
    "an escaped reference": {
        "taskgate.yaml": 'servers: {{a: {{url: "{url}", headers: {{X: "\\x24{{TOKEN_OF_A_TEST}}"}}}}}}\n'
    },
    "an environment": {
        "taskgate.yaml": (
            'environment: e\nservers: {{a: {{command: "true"}}}}\n'
            'environments: {{e: {{servers: {{a: {{command: sh, args: ["-c", "{run}"]}}}}}}}}\n'
        )
    },
    "a variable of a program": {
        "taskgate.yaml": 'servers: {{a: {{command: sh, args: ["-c", "{run}"], env: {{T: "${{TOKEN_OF_A_TEST}}"}}}}}}\n'
    },
    "a webhook": {
        "taskgate.yaml": 'approval: {{default: {{channels: [{{type: webhook, url: "{url}", secret: "${{TOKEN_OF_A_TEST}}"}}]}}}}\n'
    },
    "an issuer": {"taskgate.yaml": 'auth: {{jwt: [{{issuer: "{url}", jwks_url: "{url}"}}]}}\n'},
    "an introspection": {
        "taskgate.yaml": (
            'auth: {{introspection: {{issuer: "{url}", url: "{url}", client_id: a, client_secret: "${{TOKEN_OF_A_TEST}}"}}}}\n'
        )
    },
    "traces": {"taskgate.yaml": 'telemetry: {{otel: {{enabled: true, endpoint: "{url}"}}}}\n' + _RUN},
    "a database": {"taskgate.yaml": 'store: {{url: "postgresql://u:${{TOKEN_OF_A_TEST}}@127.0.0.1:9/x"}}\n'},
    "a model": {
        "taskgate.yaml": (
            'providers: {{m: {{type: openai, base_url: "{url}", api_key: "${{TOKEN_OF_A_TEST}}", models: [m]}}}}\n'
        )
    },
    "a digest of a token": {"taskgate.yaml": 'tokens: [{{id: a, sha256: "${{TOKEN_OF_A_TEST}}"}}]\n' + _RUN},
    "a file of the user": {"taskgate.yaml": 'servers: {{a: {{url: "{url}", headers: {{X: "${{file:~/.netrc}}"}}}}}}\n'},
}


def create(folder: Path, name: str, ran: Path) -> None:
    """Write a repository. `ran` is created by its programs."""
    values = {"run": f"touch {ran}", "url": "http://127.0.0.1:9/mcp"}
    shared = dict.fromkeys((".mcp.json", ".cursor/mcp.json"), _SETTINGS)
    for path, text in {**REPOSITORIES[name], **shared}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(**values))


class _Variables(dict[str, str]):
    """An environment that records which variables are read by their name."""

    def __init__(self, values: dict[str, str], read: list[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> str:
        self._read.append(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.append(name)
        return super().get(name, default)

    def copy(self) -> dict[str, str]:
        return _Variables(dict(self), self._read)


@dataclass(slots=True)
class Observed:
    """What happened: audit events of Python, and names of variables."""

    programs: list[str] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not self.programs and not self.connections and SECRET_NAME not in self.variables


_PROGRAMS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"}
_CONNECTIONS = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
_observers: list[Callable[[str, tuple[Any, ...]], None]] = []
"""A hook cannot be removed, so there is one, which passes events on."""


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    for observer in _observers:
        observer(event, arguments)


sys.addaudithook(_on_event)


@contextmanager
def observed(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """Work in a folder as a user with this home, and record programs, connections and variables."""
    seen = Observed()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _PROGRAMS:
            seen.programs.append(f"{event} {arguments!r}")
        elif event in _CONNECTIONS:
            seen.connections.append(f"{event} {arguments!r}")

    own = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "TASKGATE_STATE_DIR": str(home / "state"),
        SECRET_NAME: SECRET,
    }
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "environ", _Variables(own, seen.variables))
    _observers.append(note)
    try:
        yield seen
    finally:
        _observers.remove(note)
        monkeypatch.undo()
