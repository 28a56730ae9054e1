"""A lock that admits one process to a store. The kernel releases it when the process ends, also after SIGKILL.

Two files are locked: one beside the database, which names the holder, and the database itself, so that neither deleting the first
nor reaching the database by another path (a link to it) admits a second owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from taskgate import operating_system
from taskgate.core.errors import GatewayFault

_TRIES: Final = 5
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class StoreInUse(GatewayFault):
    """Another process is using this store."""


class FileLock:
    """Held from construction until `release`. The files stay; only the locks on them matter.

    Release it after the last connection to the database is closed: closing any descriptor of a file drops the locks that SQLite
    holds on it in the same process.
    """

    def __init__(self, database: Path) -> None:
        self._held: list[int] = []
        try:
            beside = self._lock_beside(database)
            # Arguments and results are in this file and in its log, which gets the same permissions.
            self._held.append(os.open(database, _FLAGS, 0o600))
            if not _locked(self._held[-1]):
                raise _in_use(database, beside)
        except BaseException:
            self.release()
            raise
        os.ftruncate(beside, 0)
        os.pwrite(beside, str(os.getpid()).encode(), 0)

    def _lock_beside(self, database: Path) -> int:
        path = database.with_name(database.name + ".lock")
        for _ in range(_TRIES):
            fd = _open_plain_file(path)
            if not _locked(fd):
                problem = _in_use(database, fd)
                os.close(fd)
                raise problem
            if _is_still_there(fd, path):
                self._held.append(fd)
                return fd
            os.close(fd)
        raise GatewayFault("store_unavailable", f"The lock file {path} is removed repeatedly by another process.")

    def sync_database(self) -> None:
        """Wait until the disk has what was written to the database so far."""
        # If the disk fails, SQLite's own sync fails too, and that one decides about the commit.
        with contextlib.suppress(OSError):
            os.fdatasync(self._held[-1])

    def release(self) -> None:
        """Release both locks, the database first: a process that gets the other one must get this one too."""
        while self._held:
            os.close(self._held.pop())


def _open_plain_file(path: Path) -> int:
    try:
        fd = os.open(path, _FLAGS | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise GatewayFault(
            "store_unavailable",
            f"The lock file {path} is a link, which another process could point elsewhere. Remove it and start again.",
        ) from None
    return fd


def _locked(fd: int) -> bool:
    return operating_system.lock(fd)


def _is_still_there(fd: int, path: Path) -> bool:
    """Return whether the path still leads to the locked file, which may have been deleted meanwhile."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _in_use(database: Path, beside: int) -> StoreInUse:
    holder = os.pread(beside, 32, 0).decode("ascii", "replace").strip()
    return StoreInUse(
        "store_unavailable",
        f"Another Taskgate (process {holder or 'unknown'}) is using the store {database}. "
        "Stop it first, or give this one its own `store.url`.",
    )
