"""How a bridge finds a gateway: a small file in the state folder says where it listens, and locks say who may start one.

`KEY.json` has the address (a Unix socket, or a loopback port and a key where there are none), the process and the console's URL.
A gateway holds `KEY.lock` as long as it lives, so a file without the lock is left over from a crash. A bridge that wants to start a
gateway holds `KEY.start` meanwhile, so that of many only one does.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

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

    def try_lock(self, kind: str) -> int | None:
        """A descriptor that holds the lock `start` or `lock` until it is closed, or None if somebody else holds it."""
        descriptor = os.open(f"{self._base}.{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def publish(self, record: dict[str, Any]) -> None:
        """Say where the gateway is, at once and as a whole."""
        partial = f"{self.record_path}.{os.getpid()}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(partial, self.record_path)

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
