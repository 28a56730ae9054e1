"""Copies committed pages from the write-ahead log into the database file, concurrently with the writer.

By default SQLite does this inside a commit, which then takes ten times as long as the others. Here a thread copies small amounts
often while the writer continues, and syncs what it has copied: SQLite syncs only with the copy that reaches the end of the log,
which would then wait for the pages of all earlier ones. Once the log is long enough, the writer makes that last copy between two
commits; it is short, and the log restarts from its beginning.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

COMMITS_BETWEEN: Final = 32
COMMITS_BETWEEN_SIZE_CHECKS: Final = 8
MAX_LOG_BYTES: Final = 16 << 20
"""A larger log is copied at once, however few commits it contains."""
START_OVER_BYTES: Final = 12 << 20
"""A shorter log is continued instead of restarted."""
_PAGE_BYTES: Final = 4096
_STOP_WITHIN_S: Final = 10.0


class Checkpointer:
    """The thread that copies. `committed` is called by the committing thread only."""

    def __init__(self, connection: sqlite3.Connection, log: Path, sync: Callable[[], None]) -> None:
        self._connection = connection
        self._log = log
        self._sync = sync
        self._requested = threading.Event()
        self._is_long = threading.Event()
        self._stopping = False
        self._commits = 0
        self._thread = threading.Thread(target=self._work, name="taskgate-store-checkpointer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._requested.set()
        self._thread.join(_STOP_WITHIN_S)
        self._connection.close()

    def committed(self, writing: sqlite3.Connection) -> None:
        """Called after each commit, while nothing is written: make the last copy of a long log, and schedule the next copy."""
        if self._is_long.is_set():
            self._is_long.clear()
            _checkpoint(writing)
        self._commits += 1
        if self._commits >= COMMITS_BETWEEN or (self._commits % COMMITS_BETWEEN_SIZE_CHECKS == 0 and self._is_large()):
            self._commits = 0
            self._requested.set()

    def _is_large(self) -> bool:
        try:
            return self._log.stat().st_size > MAX_LOG_BYTES
        except OSError:
            return False

    def _work(self) -> None:
        while True:
            self._requested.wait()
            self._requested.clear()
            if self._stopping:
                return
            pages = _checkpoint(self._connection)
            self._sync()
            if pages * _PAGE_BYTES >= START_OVER_BYTES:
                self._is_long.set()


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Copy what is possible without waiting; return the number of pages in the log."""
    try:
        pages: int = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    except sqlite3.OperationalError:
        # Nothing is lost: the pages stay in the log, and the next commit fails if the disk does.
        return 0
    return pages
