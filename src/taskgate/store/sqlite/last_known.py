"""How far the store had come when it was last written, in a few bytes beside the database.

A database that is put back from a backup looks like any other: its tasks wait as they did then, although they may have run since.
The number of the last audit row is kept here after each commit, so a start that finds less in the database than here knows that it
has an older one. Leave this file out of backups. Each write follows its commit, so it is never ahead by itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from taskgate import clock

_SYNC_EVERY_S: Final = 1.0
_WIDTH: Final = 20


class LastKnown:
    """Written by the committing thread; read once, at the start."""

    def __init__(self, database: Path, found: int) -> None:
        """`found` is the number of the last audit row in the database."""
        self._path = database.with_name(database.name + ".known")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        said = os.pread(self._file, _WIDTH, 0).strip()
        self._number = int(said) if said.isdigit() else 0
        self._synced = 0.0
        self.is_ahead = self._number > found
        """The database is older than what was written last."""

    def committed(self, number: int) -> None:
        """Rows up to this one are on the disk."""
        if number <= self._number:
            return
        # A full disk has its own words; without this a restored backup would merely not be noticed.
        with contextlib.suppress(OSError):
            self._write(number)
            now = clock.monotonic()
            if now - self._synced > _SYNC_EVERY_S:
                self._synced = now
                os.fdatasync(self._file)

    def start_over(self, number: int) -> None:
        """What was found has been dealt with: from here on the database is as new as it can be."""
        self.is_ahead = False
        self._write(number)
        os.fdatasync(self._file)

    def _write(self, number: int) -> None:
        self._number = number
        os.pwrite(self._file, b"%0*d\n" % (_WIDTH, number), 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)
        os.close(self._file)
