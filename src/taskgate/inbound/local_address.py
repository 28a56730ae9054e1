"""Where bridges find this gateway: the claim to be the one for its state folder and configuration, its socket and its record.

A claim is a lock that the kernel releases with the process. Whoever holds it may remove what a crashed gateway left behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Final

from taskgate import __version__, clock
from taskgate.bridge.meeting import Meeting, connect, make_room, monotonic, sleep
from taskgate.folders import socket_folder

ROOM_S: Final = 40.0
"""For the gateway before us to drain and end."""
ON_DEMAND, SERVE = "on-demand", "serve"
_LOOK_EVERY_S: Final = 0.05


class AddressTaken(Exception):
    """Another gateway serves this state folder and configuration."""


class LocalAddress:
    def __init__(self, meeting: Meeting, claim: int, kind: str) -> None:
        self.meeting = meeting
        self.kind = kind
        self.key = ""
        self._claim = claim
        self._path: str | None = None
        self._address = ""

    def bind(self, environment: Mapping[str, str]) -> socket.socket:
        """A socket that only this user can open; a loopback port with a key where there can be none."""
        if hasattr(socket, "AF_UNIX"):
            with contextlib.suppress(OSError):
                return self._bind_unix(os.path.join(socket_folder(environment, self.meeting.state), self.meeting.key))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", 0))
        self.key = secrets.token_urlsafe(32)
        self._address = f"tcp:127.0.0.1:{listening.getsockname()[1]}"
        return listening

    def _bind_unix(self, base: str) -> socket.socket:
        path = f"{base}.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The folder is closed to others; the mode is for whoever opens the folder one day.
            listening.bind(path)
            os.chmod(path, 0o600)
        except OSError:
            listening.close()
            raise
        self._path, self._address = path, f"unix:{path}"
        return listening

    def publish(self, url: str) -> None:
        """From now on bridges and commands find us."""
        record = {
            "address": self._address,
            "key": self.key,
            "pid": os.getpid(),
            "version": __version__,
            "url": url,
            "config": os.path.abspath(self.meeting.config) if self.meeting.config is not None else None,
            "kind": self.kind,
            "since": int(clock.wall()),
        }
        self.meeting.publish(record)

    def withdraw(self) -> None:
        """No bridge finds us any more; the claim stays until `release`, so that none starts another beside us."""
        self.meeting.withdraw()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def release(self) -> None:
        os.close(self._claim)


def claim(meeting: Meeting, kind: str) -> LocalAddress:
    """Become the gateway of this state folder and configuration. Raises AddressTaken.

    A gateway that a person starts takes the place of one that bridges started: that one drains and ends first.
    """
    held = meeting.try_lock("lock")
    record = meeting.record()
    if held is None and kind == SERVE and record is not None and record.get("kind") == ON_DEMAND:
        _ask_to_make_room(meeting)
        deadline = monotonic() + ROOM_S
        while held is None and monotonic() < deadline:
            sleep(_LOOK_EVERY_S)
            held = meeting.try_lock("lock")
    if held is None:
        pid = record.get("pid", "unknown") if record is not None else "unknown"
        raise AddressTaken(f"Another gateway (process {pid}) serves this configuration already.")
    return LocalAddress(meeting, held, kind)


def _ask_to_make_room(meeting: Meeting) -> None:
    record = meeting.record()
    found = connect(record) if record is not None else None
    if found is not None:
        made, key = found
        with contextlib.suppress(OSError), made:
            made.sendall(make_room(__version__, key))
            made.recv(65536)
