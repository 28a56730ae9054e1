"""The first lines between a bridge and a local gateway: one in each direction, with a protocol version.

The bridge sends its version, the folder and environment of its client, and the scope. The gateway replies that it
serves the client, or why not. A gateway supports every protocol version up to its own. A bridge that does not support
the version of an older gateway asks it to stop and be replaced. Later lines are messages, except lines of the gateway
that start with `!`: the last one states why it closes the connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PROTOCOL = 1
SUPPORTED_PROTOCOLS = (1,)
"""The protocol versions that this bridge supports."""
HELLO_BYTES = 1 << 20
HELLO_S = 10.0
CLOSING = b"!bye "
STOPPED, REPLACED = "stopped", "replaced"


def hello(version: str, scope: str | None, folder: str, environment: Mapping[str, str], key: str = "") -> bytes:
    """Return the first line of a bridge."""
    fields = {
        "taskgate": "bridge",
        "protocol": PROTOCOL,
        "version": version,
        "scope": scope,
        "folder": folder,
        "environment": dict(environment),
        "key": key,
    }
    return _line(fields)


def replace_request(version: str, key: str = "") -> bytes:
    """Return the line that asks a gateway to drain and end, to be replaced."""
    return _line({"taskgate": "bridge", "protocol": PROTOCOL, "version": version, "replace": True, "key": key})


def welcome(version: str, pid: int) -> bytes:
    return _line({"taskgate": "gateway", "protocol": PROTOCOL, "version": version, "pid": pid, "serves": True})


def refusal(version: str, why: str, *, replaced: bool = False) -> bytes:
    """Return the line of a gateway that does not serve the client. `replaced`: it is stopping; connect again."""
    fields = {"taskgate": "gateway", "protocol": PROTOCOL, "version": version, "serves": False, "why": why}
    return _line({**fields, "replaced": replaced})


def closing_frame(why: str) -> bytes:
    return CLOSING + why.encode("ascii") + b"\n"


def read(line: bytes, sender: str) -> dict[str, Any]:
    """Parse the first line of the peer. Raises ValueError if it is invalid."""
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("taskgate") != sender or type(fields.get("protocol")) is not int:
        raise ValueError(f"invalid first line of a {sender}")
    return fields


def is_older(one: str, other: str) -> bool:
    """Return whether the first version is older than the second. False if one is invalid."""
    try:
        return [int(part) for part in one.split(".")[:3]] < [int(part) for part in other.split(".")[:3]]
    except ValueError:
        return False


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"
