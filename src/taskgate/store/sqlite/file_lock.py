"""A lock that makes sure only one process works on a store. The kernel releases it with the process, also after
SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from taskgate.core.errors import GatewayFault


class StoreInUse(GatewayFault):
    """Another process works on this store."""


class FileLock:
    """Held from construction until `release`. The file stays; only the lock on it matters."""

    def __init__(self, database: Path) -> None:
        path = database.with_name(database.name + ".lock")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreInUse(
                "store_unavailable",
                f"Another Taskgate (process {holder or 'unknown'}) is using the store {database}. "
                "Stop it first, or give this one its own `store.url`.",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._fd)
