"""What a bridge and a local gateway say to each other before the messages of the client: one line each way, with a version.

The bridge begins with who it is, where its client stands (folder, environment) and which scope it wants. The gateway answers
that it serves, or why not. A gateway understands every protocol up to its own; a bridge that finds a gateway with an older one that
it does not speak asks it to make room. Later lines are messages, except for those of the gateway that begin with `!`: the last one
says why it hangs up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PROTOCOL = 1
SPOKEN = (1,)
"""The protocols this version can speak as a bridge."""
HELLO_BYTES = 1 << 20
HELLO_S = 10.0
GOODBYE = b"!bye "
STOPPED, REPLACED = "stopped", "replaced"


def hello(version: str, scope: str | None, folder: str, environment: Mapping[str, str], key: str = "") -> bytes:
    """The bridge's first line."""
    said = {
        "taskgate": "bridge",
        "protocol": PROTOCOL,
        "version": version,
        "scope": scope,
        "folder": folder,
        "environment": dict(environment),
        "key": key,
    }
    return _line(said)


def make_room(version: str, key: str = "") -> bytes:
    """Asks a gateway to end in peace, because another is to take its place."""
    return _line({"taskgate": "bridge", "protocol": PROTOCOL, "version": version, "replace": True, "key": key})


def welcome(version: str, pid: int) -> bytes:
    return _line({"taskgate": "gateway", "protocol": PROTOCOL, "version": version, "pid": pid, "serves": True})


def refusal(version: str, why: str, *, replaced: bool = False) -> bytes:
    """The gateway's answer when it does not serve; `replaced`: it makes room, try again in a moment."""
    said = {"taskgate": "gateway", "protocol": PROTOCOL, "version": version, "serves": False, "why": why}
    return _line({**said, "replaced": replaced})


def goodbye(why: str) -> bytes:
    return GOODBYE + why.encode("ascii") + b"\n"


def read(line: bytes, sender: str) -> dict[str, Any]:
    """A first line from the other side. Raises ValueError if it is none."""
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("taskgate") != sender or type(said.get("protocol")) is not int:
        raise ValueError(f"this is not the first line of a {sender}")
    return said


def is_older(one: str, other: str) -> bool:
    """Is the first version before the second? Anything unreadable is not."""
    try:
        return [int(part) for part in one.split(".")[:3]] < [int(part) for part in other.split(".")[:3]]
    except ValueError:
        return False


def _line(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode("ascii") + b"\n"
