"""What is known about one MCP client: where its settings are, how it writes a server, how it would write the gateway.

Values only; each client's own module fills them in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

GATEWAY_NAME = "taskgate"
Pointer = tuple[str, ...]
Entry = dict[str, Any]


class Format(StrEnum):
    """How a settings file is written."""

    JSON = "json"
    TOML = "toml"


class Variables(StrEnum):
    """How a client writes variables inside values."""

    OURS = "${VAR}"
    BRACES = "{env:VAR}"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as far as paths depend on it."""

    home: Path
    folder: Path
    platform: str = sys.platform
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Host:
        return cls(Path.home(), Path.cwd(), sys.platform, dict(os.environ))

    def settings(self) -> Path:
        """Where programs keep their settings on this platform."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environment.get("APPDATA") or self.home / "AppData" / "Roaming")
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")


@dataclass(frozen=True, slots=True)
class Place:
    """One map of servers: a file and the keys that lead to the map. The gateway's entry goes to the main place."""

    path: Path
    pointer: Pointer
    format: Format = Format.JSON
    main: bool = False


@dataclass(frozen=True, slots=True)
class Gateway:
    """How a client reaches the gateway: a command to start, or an address."""

    command: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `read` turns its way of writing a server into ours; `write` makes its entry for the gateway."""

    name: str
    title: str
    programs: tuple[str, ...]
    places: Callable[[Host], list[Place]]
    read: Callable[[Entry], Entry]
    write: Callable[[Gateway], Entry]
    variables: Variables = Variables.OURS


class CannotInstall(Exception):
    """The client's settings cannot hold what was asked for; the message says what to do instead."""


def usual_entry(gateway: Gateway, *, stdio_type: str | None = None, http_type: str | None = None) -> Entry:
    """The gateway in the shape that most clients share."""
    if gateway.url:
        return {**({"type": http_type} if http_type else {}), "url": gateway.url}
    program, *args = gateway.command
    return {**({"type": stdio_type} if stdio_type else {}), "command": program, "args": args}


def is_gateway(name: str, server: Entry) -> bool:
    """Whether an entry is the gateway itself: it must never be put behind itself."""
    words = [server.get("command") or "", *(server.get("args") or ())]
    programs = {Path(str(word)).name.removesuffix(".exe") for word in words}
    starts_us = "stdio" in words and "taskgate" in programs
    return starts_us or (name == GATEWAY_NAME and "url" in server)
