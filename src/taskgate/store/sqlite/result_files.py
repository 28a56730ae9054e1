"""Files beside the database for results that are too large for a row.

A file and its directory entry are synced before the commit that refers to the file, so a file that a row refers to always exists. A
file that no row refers to is left over from a crash or a failed write, and is removed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from taskgate import clock
from taskgate.atomic_files import sync_folder

_ORPHAN_AGE_S: Final = 600


class SpillFiles:
    """The folder `<database>.results`."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + ".results")
        self._written: dict[str, float] = {}
        """Files of this process with their time by the monotonic clock: the wall clock may have been set since."""

    def write(self, task_id: str, body: bytes) -> str:
        """Make the bytes durable; return the name of the file."""
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder.parent)
        name = f"{task_id}.{secrets.token_hex(8)}"
        self._written[name] = clock.monotonic()
        path = self._folder / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=0, closefd=False) as file:
                view = memoryview(body)
                while view:
                    view = view[file.write(view) :]
            os.fsync(fd)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        sync_folder(self._folder)
        return name

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def remove(self, names: Iterable[str]) -> int:
        count = 0
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
            count += 1
        return count

    def remove_orphans(self, named: set[str], now_s: float, *, older_than_s: float = _ORPHAN_AGE_S) -> int:
        """Remove old files that no row refers to. Young ones may belong to a write that is not committed yet."""
        if not self._folder.is_dir():
            return 0
        since = clock.monotonic() - older_than_s
        self._written = {name: at for name, at in list(self._written.items()) if at > since}
        with os.scandir(self._folder) as entries:
            orphans = [
                entry.name
                for entry in entries
                if entry.name not in named
                and entry.name not in self._written
                and now_s - entry.stat().st_mtime >= older_than_s
            ]
        return self.remove(orphans)
