"""What differs between Linux, macOS and Windows: file locks, sockets, users, signals, and what is missing where.

No other module checks the platform for these. Standard library only and cheap to import, because the bridge of every client on
stdio uses it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PRIVATE_FILE_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
"""To open or create a lock file: not inherited by children, and not through a link. Windows has neither flag."""
_XUCRED_BYTES, _LOCAL_PEERCRED = 76, 1


class Loop(Protocol):
    """The part of an event loop that signals need; asyncio is not imported for it."""

    def add_signal_handler(self, sig: int, callback: Callable[[], object]) -> None: ...

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object: ...


def lock(descriptor: int, *, wait: bool = False, with_flock: Any = fcntl, with_msvcrt: Any = None) -> bool:
    """Lock an open file until it is closed. Return False if another process holds the lock; with `wait`, wait for it."""
    if with_flock is not None:
        try:
            with_flock.flock(descriptor, with_flock.LOCK_EX | (0 if wait else with_flock.LOCK_NB))
        except BlockingIOError:
            return False
        return True
    if with_msvcrt is None:
        import msvcrt as with_msvcrt  # Windows
    try:
        # One byte far behind the content, because Windows forbids others to read locked bytes.
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        with_msvcrt.locking(descriptor, with_msvcrt.LK_LOCK if wait else with_msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def has_unix_sockets() -> bool:
    return hasattr(socket, "AF_UNIX")


def unix_socket(kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Create a Unix socket. Python makes sockets non-inheritable; macOS has no flag for it."""
    return socket.socket(socket.AF_UNIX, kind)


def peer_user(connected: socket.socket, platform: str = sys.platform) -> int | None:
    """Return the user id of a Unix socket's peer, or None if the system does not report it."""
    # Linux: a `struct ucred` is process, user, group. macOS and the BSDs: a `struct xucred` begins with its version and the user.
    linux = platform.startswith("linux")
    level, name, size = (socket.SOL_SOCKET, socket.SO_PEERCRED, 12) if linux else (0, _LOCAL_PEERCRED, _XUCRED_BYTES)
    try:
        return int(struct.unpack("ii", connected.getsockopt(level, name, size)[:8])[1])
    except (OSError, struct.error):
        return None


def own_user() -> int:
    """Return the id of the user of this process. Windows has no numbers for users; 0 stands for the only one there."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has none."""
    try:
        import pwd
    except ImportError:  # Windows
        return os.environ.get("USERNAME") or str(uid)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def on_signals(loop: Loop, handlers: Mapping[str, Callable[[], object]]) -> list[str]:
    """Call functions in the event loop when signals arrive. Return the names of signals that this system does not have."""
    missing = []
    for name, handler in handlers.items():
        number = getattr(signal, name, None)
        if number is None:
            missing.append(name)
            continue
        try:
            loop.add_signal_handler(number, handler)
        except NotImplementedError:  # the event loops of Windows
            signal.signal(number, partial(_call_soon, loop, handler))
    return missing


def _call_soon(loop: Loop, handler: Callable[[], object], _number: int, _frame: object) -> None:
    loop.call_soon_threadsafe(handler)


def kill_group(pid: int) -> None:
    """Kill a process that leads a group, with all processes of the group; on Windows only the process itself."""
    if hasattr(os, "killpg"):
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)


def limitations(platform: str = sys.platform) -> list[str]:
    """Return what does not work on this system, one sentence each, with the alternative."""
    if platform.startswith("linux"):
        return []
    if platform == "darwin":
        return [
            "macOS does not end the programs of servers with a killed gateway; a watcher process ends them within seconds.",
        ]
    if platform == "win32":
        return [
            "Windows is not tested. Use the Windows Subsystem for Linux for anything but a trial.",
            "Windows has no SIGHUP: reload the configuration with `taskgate reload`.",
            "Windows has no Unix sockets here: `taskgate stdio` uses a loopback port with a key.",
            "Windows has no process groups here: programs of servers may keep running after the gateway.",
            "uvloop does not exist for Windows: calls cost more CPU time.",
        ]
    return [f"{platform} is not tested; Linux and macOS are."]
