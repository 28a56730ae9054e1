"""Detects that a folder or file that this process works in was removed, renamed or replaced.

A process can write to files that were removed, but everything in them is lost when it ends. Meanwhile another gateway finds
an empty folder and starts beside it. So a gateway whose files are gone must stop.
"""

from __future__ import annotations

import os

StrPath = str | os.PathLike[str]
Identity = tuple[int, int]


def identity_of(path: StrPath) -> Identity:
    """Which file or folder it is, whatever its name. Raises OSError."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def lost(path: StrPath, ours: Identity) -> str | None:
    """Why the file or folder of this name is no longer ours; None if it is, or if that cannot be determined now.

    `ours` must be held open, or its inode number may be reused.
    """
    try:
        found = identity_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{os.fspath(path)} was removed or renamed"
    except OSError:
        return None
    return None if found == ours else f"{os.fspath(path)} was replaced"


class HeldFolder:
    """A folder that is held open until `close`, so that its inode number cannot be reused meanwhile."""

    def __init__(self, path: StrPath) -> None:
        self._path = path
        self._held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self._held)
        self._ours = (found.st_dev, found.st_ino)

    def lost(self) -> str | None:
        return lost(self._path, self._ours)

    def close(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
