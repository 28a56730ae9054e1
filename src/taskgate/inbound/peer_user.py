"""The user at the other end of a Unix socket, and its name as a principal."""

from __future__ import annotations

import pwd
import socket
import struct
from typing import Final

_PEER: Final = (socket.SOL_SOCKET, socket.SO_PEERCRED, 12) if hasattr(socket, "SO_PEERCRED") else (0, 1, 76)


def peer_uid(made: socket.socket) -> int | None:
    """Return the user id of a Unix socket's peer, or None if the kernel does not report it."""
    # Linux: a `struct ucred` is process, user, group. macOS and the BSDs: a `struct xucred` begins with its version and the user.
    level, name, size = _PEER
    try:
        return int(struct.unpack("ii", made.getsockopt(level, name, size)[:8])[1])
    except (OSError, struct.error):
        return None


def local_principal(uid: int) -> str:
    """Return the principal of a user of this machine."""
    try:
        return f"local:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"local:{uid}"
