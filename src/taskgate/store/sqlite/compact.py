"""Rewrite the file of a store without its free pages, while no gateway uses it.

The content stays what it is, and with it the fence and the number of the last audit row: beside the mark of the last life, the file
does not count as restored. If the process or the machine ends meanwhile, the file is as before.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from taskgate.core.errors import GatewayFault
from taskgate.store.sqlite.connection import connect_writer, gives_back_pages, rewrite_file, truncate_log
from taskgate.store.sqlite.file_lock import FileLock

_COPIES: Final = 2
"""One in a temporary file and one in the log of the database."""


class Space(NamedTuple):
    bytes: int
    """The size of the file."""
    unused_bytes: int
    """How much of it is free pages."""
    needed_bytes: int
    """How much more the disk must have while the file is rewritten."""
    available_bytes: int
    gives_back: bool
    """Whether free pages are given back while a gateway runs; if not, the file is of an older version."""


def space_of(path: Path) -> Space:
    """Raises GatewayFault if a gateway uses the file."""
    with _opened(path) as connection:
        return _space(connection, path)


def compact(path: Path) -> tuple[Space, Space]:
    """Return the space before and afterwards. Raises GatewayFault."""
    with _opened(path) as connection:
        before = _space(connection, path)
        if before.available_bytes < before.needed_bytes:
            raise GatewayFault(
                "store_unavailable",
                f"Compacting needs {before.needed_bytes:,} bytes beside {path}, where {before.available_bytes:,} are "
                "free. Nothing was changed.",
            )
        failed = rewrite_file(connection, threading.Event())
        if failed is not None:
            raise GatewayFault("store_unavailable", f"The store {path} could not be compacted: {failed}.")
        return before, _space(connection, path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        raise GatewayFault("store_unavailable", f"There is no store at {path}.")
    lock = FileLock(path)
    try:
        with contextlib.closing(connect_writer(path)) as connection, _copies_in(path.absolute().parent, connection):
            truncate_log(connection)
            yield connection
    except sqlite3.Error as error:
        raise GatewayFault("store_unavailable", f"The store {path} cannot be opened: {error}.") from error
    finally:
        lock.release()


@contextlib.contextmanager
def _copies_in(folder: Path, connection: sqlite3.Connection) -> Iterator[None]:
    """The temporary copy is written where the space was checked. SQLite reads its variable SQLITE_TMPDIR at its import only."""
    quoted = str(folder).replace("'", "''")
    connection.execute(f"PRAGMA temp_store_directory='{quoted}'")
    try:
        yield
    finally:
        connection.execute("PRAGMA temp_store_directory=''")


def _space(connection: sqlite3.Connection, path: Path) -> Space:
    size, pages, free = (
        connection.execute(f"PRAGMA main.{name}").fetchone()[0]
        for name in ("page_size", "page_count", "freelist_count")
    )
    needed, available = _COPIES * (pages - free) * size, shutil.disk_usage(path.absolute().parent).free
    return Space(path.stat().st_size, free * size, needed, available, gives_back=gives_back_pages(connection))
