"""`python -m tests.store.killed_compaction FILE STATEMENT BYTES`: compact a store, and be killed in one of its statements.

From the first statement with that beginning, the system kills this process when it writes behind that position of any file.
Without BYTES it is killed before the statement.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

from taskgate.store.sqlite import compact
from taskgate.store.sqlite.connection import rewrite_file


class Limited:
    """A connection that limits the process when it gets the statement."""

    def __init__(self, connection: sqlite3.Connection, statement: str, limit: int | None) -> None:
        self._connection = connection
        self._statement = statement
        self._limit = limit

    def execute(self, sql: str) -> sqlite3.Cursor:
        if sql.startswith(self._statement):
            if self._limit is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, self._limit))
        return self._connection.execute(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def main(file: str, statement: str, limit: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    def limited(connection: sqlite3.Connection, pause: threading.Event) -> str | None:
        return rewrite_file(Limited(connection, statement, limit), pause)  # type: ignore[arg-type]

    compact.rewrite_file = limited  # type: ignore[attr-defined]
    compact.compact(Path(file))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
