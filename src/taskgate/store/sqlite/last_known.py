"""A file beside the database with the last fence and audit number, to detect a database that was restored from a backup.

A restored database looks like any other: its tasks wait as they did at the time of the backup, although they may have run since.
If the database has a lower fence (each start takes a new one) or audit number than this file, or the file is missing, the database
is an older one. Do not include this file in backups. The fence is durable here before the first task of that start is accepted;
each audit number is written after its commit, so the file is never ahead of a current database.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from taskgate import clock
from taskgate.atomic_files import sync_folder

FIRST_SCHEMA_WITH_MARK: Final = 6
"""Versions with an older schema did not write the file: such a database is upgraded, not restored."""
_SYNC_EVERY_S: Final = 1.0
_WIDTH: Final = 20
_LENGTH: Final = 2 * _WIDTH + 2


class StoreMark(NamedTuple):
    number: int
    """The number of the last audit row."""
    fence: int
    """The fence of the last start."""


def mark_beside(database: Path) -> Path:
    return database.with_name(database.name + ".known")


class LastKnown:
    """Written by the committing thread; read once, at the start."""

    def __init__(self, database: Path, found: StoreMark, *, expected: bool) -> None:
        """`found` is read from the database, with the fence of the previous start. `expected`: that start wrote the file."""
        self._path = mark_beside(database)
        known = _read(self._path)
        self._mark = found
        self._file: int | None = None
        self._synced = 0.0
        self.is_ahead = expected if known is None else known.number > found.number or known.fence > found.fence
        """Whether the database is older than the last write, or cannot be shown to be current."""

    def begin(self, fence: int) -> None:
        """Record durably that the database is current. Raises OSError."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write(self._mark._replace(fence=fence))
        os.fdatasync(self._file)
        sync_folder(self._path.parent)

    def committed(self, number: int) -> None:
        """Record that rows up to this one are committed."""
        if number <= self._mark.number:
            return
        # A full disk fails commits elsewhere; without this record only a restored backup would go undetected.
        with contextlib.suppress(OSError):
            self._write(self._mark._replace(number=number))
            now = clock.monotonic()
            if now - self._synced > _SYNC_EVERY_S and self._file is not None:
                self._synced = now
                os.fdatasync(self._file)

    def _write(self, mark: StoreMark) -> None:
        self._mark = mark
        if self._file is not None:
            os.pwrite(self._file, b"%0*d %0*d\n" % (_WIDTH, mark.number, _WIDTH, mark.fence), 0)

    def close(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)
        os.close(self._file)


def _read(path: Path) -> StoreMark | None:
    """Return None if the file is missing or invalid. Earlier versions wrote no fence."""
    try:
        words = path.read_bytes()[:_LENGTH].split()
    except OSError:
        return None
    if not words or not all(word.isdigit() for word in words):
        return None
    return StoreMark(int(words[0]), int(words[1]) if len(words) > 1 else 0)
