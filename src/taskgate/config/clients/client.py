"""What Taskgate needs to know about one MCP client: where its settings are, and how it writes a server and the gateway.

Values only; `known` has one for each supported client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

GATEWAY_NAME = "taskgate"
Pointer = tuple[str, ...]
Entry = dict[str, Any]


class Format(StrEnum):
    """The file format of a settings file."""

    JSON = "json"
    TOML = "toml"


class Variables(StrEnum):
    """The syntax of variables in a client's settings."""

    OURS = "${VAR}"
    BRACES = "{env:VAR}"
    NONE = "none"


class Host(msgspec.Struct, frozen=True):
    """What the paths of settings files depend on."""

    home: Path
    folder: Path
    platform: str = sys.platform
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Host:
        return cls(Path.home(), Path.cwd(), sys.platform, dict(os.environ))

    def settings(self) -> Path:
        """Return the folder of application settings on this platform."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environment.get("APPDATA") or self.home / "AppData" / "Roaming")
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")


class SettingsPlace(msgspec.Struct, frozen=True):
    """One map of servers: a file and the keys that lead to the map. The gateway's entry is written to the main one.

    A file in the project folder is `shared` with other developers, usually through version control.
    """

    path: Path
    pointer: Pointer
    format: Format = Format.JSON
    main: bool = False
    shared: bool = False


class Reach(StrEnum):
    """Which of a client's files a command uses."""

    ALL = "all"
    OWN = "own"
    SHARED = "shared"


def places_of(client: Client, host: Host, reach: Reach) -> list[SettingsPlace]:
    """Return the client's settings files within this reach. In the home folder, project files count as the user's own."""
    places = list({(place.path, place.pointer): place for place in reversed(client.places(host))}.values())[::-1]
    own = {place.path for place in places if not place.shared}
    shared = [place.shared and place.path not in own for place in places]
    included = {Reach.ALL: (True, False), Reach.OWN: (False,), Reach.SHARED: (True,)}[reach]
    return [place for place, is_shared in zip(places, shared, strict=True) if is_shared in included]


class Gateway(msgspec.Struct, frozen=True):
    """How a client reaches the gateway: a command to start, or a URL."""

    command: tuple[str, ...] = ()
    url: str | None = None


class Client(msgspec.Struct, frozen=True):
    """One client. `read` converts its server entries to ours; `write` returns its entry for the gateway."""

    name: str
    title: str
    programs: tuple[str, ...]
    places: Callable[[Host], list[SettingsPlace]]
    read: Callable[[Entry], Entry]
    write: Callable[[Gateway], Entry]
    variables: Variables = Variables.OURS


class CannotInstall(Exception):
    """The client's settings do not support the requested entry; the message states the alternative."""
