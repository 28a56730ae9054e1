"""How a bridge and its gateway find each other: where the gateway listens, and what is said before any message."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from taskgate.atomic_files import replace_file
from taskgate.folders import gateway_key, meeting_folder

try:
    import fcntl
except ImportError:  # pragma: no cover: not on systems without flock
    fcntl = None  # type: ignore[assignment]

CONNECT_S = 5.0


class Meeting:
    """The meeting point of one state folder and configuration."""

    def __init__(self, state: str, config: str | None) -> None:
        self.state, self.config = state, config
        self.key = gateway_key(state, config)
        self._base = os.path.join(meeting_folder(state), self.key)

    @property
    def record_path(self) -> str:
        return self._base + ".json"

    @property
    def log_path(self) -> str:
        """What a gateway that was started on demand has to say."""
        return self._base + ".log"

    def record(self) -> dict[str, Any] | None:
        """What the gateway wrote, or what one that crashed left behind."""
        return read_record(self.record_path)

    def connect(self) -> tuple[socket.socket, str] | None:
        """A connection and the key to show, or None if nobody answers."""
        record = self.record()
        return connect(record) if record is not None else None

    def path_of(self, kind: str) -> str:
        """The file that is locked: `start` or `lock`."""
        return f"{self._base}.{kind}"

    def try_lock(self, kind: str) -> int | None:
        """A descriptor that holds the lock `start` or `lock` until it is closed, or None if somebody else holds it."""
        descriptor = os.open(self.path_of(kind), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def publish(self, record: dict[str, Any]) -> None:
        """Write where the gateway can be reached, in one step."""
        replace_file(self.record_path, json.dumps(record).encode())

    def withdraw(self) -> None:
        try:
            os.unlink(self.record_path)
        except FileNotFoundError:
            return


def read_record(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("address"), str) else None


def connect(record: dict[str, Any]) -> tuple[socket.socket, str] | None:
    """A connection to the gateway of a record and the key to show, or None if nobody answers there."""
    kind, _, place = record["address"].partition(":")
    try:
        if kind == "unix":
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(CONNECT_S)
            made.connect(place)
        else:
            host, _, port = place.rpartition(":")
            made = socket.create_connection((host, int(port)), CONNECT_S)
    except (OSError, ValueError):
        return None
    return made, str(record.get("key", ""))


# What a bridge and a local gateway say to each other before the messages of the client: one line each way, with a
# version.
#
# The bridge begins with who it is, where its client stands (folder, environment) and which scope it wants. The gateway
# answers that it serves, or why not. A gateway understands every protocol up to its own; a bridge that finds a gateway
# with an older one that it does not speak asks it to make room. Later lines are messages, except for those of the
# gateway that begin with `!`: the last one says why it hangs up.

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


# The time, for the bridge: `taskgate.clock` brings the event loop along, which costs more than the whole bridge.

monotonic = time.monotonic
sleep = time.sleep
