"""Detects that the files of the store were removed or replaced.

SQLite continues with files that were removed or replaced. What is committed to them is lost when this process ends, so it must
not be acknowledged.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskgate.held_folder import identity_of, lost


class StoreFiles:
    """The database and its log. The connections of the store hold both open."""

    def __init__(self, database: Path) -> None:
        # SQLite keeps the log beside the file itself, also where the database is opened by a link to it.
        files = (database, Path(f"{os.path.realpath(database)}-wal"))
        self._files = [(path, identity_of(path)) for path in files]

    def lost(self) -> str | None:
        """Return why the next process would not find what is written now; None if it would. Two calls of `stat`."""
        for path, ours in self._files:
            if (why := lost(path, ours)) is not None:
                return why
        return None
