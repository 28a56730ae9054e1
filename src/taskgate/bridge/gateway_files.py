"""The files by which a bridge finds its gateway: the record of the gateway's address, and the locks."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from taskgate import operating_system
from taskgate.atomic_files import replace_file
from taskgate.folders import gateway_key, local_gateways_folder

CONNECT_S = 5.0


class GatewayFiles:
    """The files by which bridges and the gateway of one state folder and configuration find each other."""

    def __init__(self, state: str, config: str | None, *, is_found: bool = False) -> None:
        self.state, self.config = state, config
        self.is_found = is_found
        """Whether only the working folder led to the configuration, so that a gateway uses it within the user's consent."""
        self.key = gateway_key(state, config)
        self._base = os.path.join(local_gateways_folder(state), self.key)

    @property
    def record_path(self) -> str:
        return self._base + ".json"

    @property
    def log_path(self) -> str:
        """The log of a gateway that was started on demand."""
        return self._base + ".log"

    def record(self) -> dict[str, Any] | None:
        """Return the record of the gateway, possibly of one that crashed."""
        return read_record(self.record_path)

    def connect(self) -> tuple[socket.socket, str] | None:
        """Return a connection and the key to send, or None if no gateway responds."""
        record = self.record()
        return connect(record) if record is not None else None

    def path_of(self, kind: str) -> str:
        """Return the path of the lock file `start` or `lock`."""
        return f"{self._base}.{kind}"

    def try_lock(self, kind: str) -> int | None:
        """Return a descriptor that holds the lock `start` or `lock` until it is closed, or None if another process holds it."""
        descriptor = os.open(self.path_of(kind), operating_system.PRIVATE_FILE_FLAGS, 0o600)
        if operating_system.lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def publish(self, record: dict[str, Any]) -> None:
        """Write the record atomically."""
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
    """Return a connection to the gateway of a record and the key to send, or None if it does not respond."""
    kind, _, place = record["address"].partition(":")
    try:
        if kind == "unix":
            made = operating_system.unix_socket()
            made.settimeout(CONNECT_S)
            made.connect(place)
        else:
            host, _, port = place.rpartition(":")
            made = socket.create_connection((host, int(port)), CONNECT_S)
    except (OSError, ValueError):
        return None
    return made, str(record.get("key", ""))


# `taskgate.clock` imports the event loop, which costs more than the whole bridge.

monotonic = time.monotonic
sleep = time.sleep
