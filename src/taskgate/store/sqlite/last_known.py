"""How far the store had come when it was last written, in a few bytes beside the database.

A database that was restored from a backup looks like any other: its tasks wait as they did then, although they may have run since.
The number of the last life (each start takes a new fence) and of the last audit row are kept here, so a start that finds less in
the database than here, or finds no such file, has an older one. Leave this file out of backups. The life is durable here before
the first task of that life is accepted; each audit number follows its commit, so the file is never ahead by itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from taskgate import clock
from taskgate.atomic_files import sync_folder

FIRST_SCHEMA_WITH_MARK: Final = 6
"""Versions with an older schema did not write the file: a database of theirs is upgraded, not restored."""
_SYNC_EVERY_S: Final = 1.0
_WIDTH: Final = 20
_LENGTH: Final = 2 * _WIDTH + 2


class LifeMark(NamedTuple):
    number: int
    """Of the last audit row."""
    fence: int
    """Of the last start."""


def mark_beside(database: Path) -> Path:
    return database.with_name(database.name + ".known")


class LastKnown:
    """Written by the committing thread; read once, at the start."""

    def __init__(self, database: Path, found: LifeMark, *, expected: bool) -> None:
        """`found` is in the database, with the fence of the start before this one; `expected`: an earlier start wrote the file."""
        self._path = mark_beside(database)
        said = _read(self._path)
        self._mark = found
        self._file: int | None = None
        self._synced = 0.0
        self.is_ahead = expected if said is None else said.number > found.number or said.fence > found.fence
        """The database is older than what was written last, or it is not known to be current."""

    def begin(self, fence: int) -> None:
        """From here on the database is the current one; durable when this returns. Raises OSError."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write(self._mark._replace(fence=fence))
        os.fdatasync(self._file)
        sync_folder(self._path.parent)

    def committed(self, number: int) -> None:
        """Rows up to this one are on the disk."""
        if number <= self._mark.number:
            return
        # A full disk has its own words; without this a restored backup would merely not be noticed.
        with contextlib.suppress(OSError):
            self._write(self._mark._replace(number=number))
            now = clock.monotonic()
            if now - self._synced > _SYNC_EVERY_S and self._file is not None:
                self._synced = now
                os.fdatasync(self._file)

    def _write(self, mark: LifeMark) -> None:
        self._mark = mark
        if self._file is not None:
            os.pwrite(self._file, b"%0*d %0*d\n" % (_WIDTH, mark.number, _WIDTH, mark.fence), 0)

    def close(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)
        os.close(self._file)


def _read(path: Path) -> LifeMark | None:
    """None if there is no such file or nothing in it can be read. Earlier versions wrote no fence."""
    try:
        said = path.read_bytes()[:_LENGTH].split()
    except OSError:
        return None
    if not said or not all(word.isdigit() for word in said):
        return None
    return LifeMark(int(said[0]), int(said[1]) if len(said) > 1 else 0)
