"""Moves committed pages from the log into the database file, beside the writer instead of in its way.

SQLite would do this inside some unlucky commit, which then takes ten times as long as the others. Here a thread of its
own copies while the writer goes on. After that the writer finishes the few pages that came meanwhile, between two commits,
so that the log starts over from its beginning and does not grow for ever.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Final

COMMITS_BETWEEN: Final = 128
COMMITS_BETWEEN_LOOKS: Final = 8
MAX_LOG_BYTES: Final = 16 << 20
"""A log that is larger is copied at once, however few commits are in it."""
_STOP_WITHIN_S: Final = 10.0


class Checkpointer:
    """`committed` is called by the committing thread only."""

    def __init__(self, connection: sqlite3.Connection, log: Path) -> None:
        self._connection = connection
        self._log = log
        self._wanted = threading.Event()
        self._copied = threading.Event()
        self._stopping = False
        self._commits = 0
        self._thread = threading.Thread(target=self._work, name="taskgate-store-checkpointer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        self._thread.join(_STOP_WITHIN_S)
        self._connection.close()

    def committed(self, writing: sqlite3.Connection) -> None:
        """After each commit, while nobody writes: finish a copy that is done, and ask for the next one in time."""
        if self._copied.is_set():
            self._copied.clear()
            _checkpoint(writing)
        self._commits += 1
        if self._commits >= COMMITS_BETWEEN or (self._commits % COMMITS_BETWEEN_LOOKS == 0 and self._is_large()):
            self._commits = 0
            self._wanted.set()

    def _is_large(self) -> bool:
        try:
            return self._log.stat().st_size > MAX_LOG_BYTES
        except OSError:
            return False

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                return
            _checkpoint(self._connection)
            self._copied.set()


def _checkpoint(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError:
        # Nothing is lost: the pages stay in the log, and the next commit will tell whether the disk is in trouble.
        return
