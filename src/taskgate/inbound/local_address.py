"""Where bridges find this gateway: the lock on its state folder and configuration, its socket and its record.

The lock is released by the kernel when the process ends. Its holder may remove what a crashed gateway left behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Final

from taskgate import __version__, clock, operating_system
from taskgate.bridge.gateway_files import GatewayFiles, connect, monotonic, sleep
from taskgate.bridge.handshake import replace_request
from taskgate.folders import socket_folder
from taskgate.held_folder import lost

REPLACEMENT_S: Final = 40.0
"""How long to wait until the previous gateway has drained and ended."""
ON_DEMAND, SERVE = "on-demand", "serve"
_POLL_S: Final = 0.05


class AddressTaken(Exception):
    """Another gateway serves this state folder and configuration."""


class LocalAddress:
    def __init__(self, files: GatewayFiles, claim: int, kind: str) -> None:
        self.files = files
        self.kind = kind
        self.key = ""
        self._claim = claim
        found = os.fstat(claim)
        self._identity = (found.st_dev, found.st_ino)
        self._path: str | None = None
        self._address = ""

    def bind(self, environment: Mapping[str, str]) -> socket.socket:
        """Bind a socket that only this user can open, or a loopback port with a key if Unix sockets are not available."""
        if operating_system.has_unix_sockets():
            with contextlib.suppress(OSError):
                return self._bind_unix(os.path.join(socket_folder(environment, self.files.state), self.files.key))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", 0))
        self.key = secrets.token_urlsafe(32)
        self._address = f"tcp:127.0.0.1:{listening.getsockname()[1]}"
        return listening

    def _bind_unix(self, base: str) -> socket.socket:
        path = f"{base}.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listening = operating_system.unix_socket()
        try:
            # The folder is private; the mode protects the socket if the folder is opened to others.
            listening.bind(path)
            os.chmod(path, 0o600)
        except OSError:
            listening.close()
            raise
        self._path, self._address = path, f"unix:{path}"
        return listening

    def publish(self, url: str) -> None:
        """Write the record by which bridges and commands find this gateway."""
        record = {
            "address": self._address,
            "key": self.key,
            "pid": os.getpid(),
            "version": __version__,
            "url": url,
            "config": os.path.abspath(self.files.config) if self.files.config is not None else None,
            "kind": self.kind,
            "since": int(clock.wall()),
        }
        self.files.publish(record)

    def lost(self) -> str | None:
        """Return why another gateway could claim this address despite the lock (the locked file was removed), or None."""
        return lost(self.files.path_of("lock"), self._identity)

    def withdraw(self) -> None:
        """Remove record and socket. The lock is kept until `release`, so that no bridge starts another gateway meanwhile."""
        if self.lost() is not None:
            return  # the record and the socket may belong to the next gateway
        self.files.withdraw()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def release(self) -> None:
        os.close(self._claim)


def claim(files: GatewayFiles, kind: str) -> LocalAddress:
    """Take the lock of this state folder and configuration. Raises AddressTaken.

    A gateway started by `serve` replaces one that was started by bridges, which drains and ends first.
    """
    held = files.try_lock("lock")
    record = files.record()
    if held is None and kind == SERVE and record is not None and record.get("kind") == ON_DEMAND:
        held = _lock_after_replacement(files, monotonic() + REPLACEMENT_S)
    if held is None:
        pid = record.get("pid", "unknown") if record is not None else "unknown"
        raise AddressTaken(f"Another gateway (process {pid}) already serves this configuration.")
    return LocalAddress(files, held, kind)


def _lock_after_replacement(files: GatewayFiles, deadline: float) -> int | None:
    """Ask the gateway that bridges started to end, and take its lock. Meanwhile no bridge may start another one: its callers lose
    their connection and would be first.
    """
    starting = _lock_until(files, "start", deadline)
    try:
        _request_replacement(files)
        return _lock_until(files, "lock", deadline)
    finally:
        if starting is not None:
            os.close(starting)


def _lock_until(files: GatewayFiles, name: str, deadline: float) -> int | None:
    while (held := files.try_lock(name)) is None and monotonic() < deadline:
        sleep(_POLL_S)
    return held


def _request_replacement(files: GatewayFiles) -> None:
    record = files.record()
    found = connect(record) if record is not None else None
    if found is not None:
        made, key = found
        with contextlib.suppress(OSError), made:
            made.sendall(replace_request(__version__, key))
            made.recv(65536)
