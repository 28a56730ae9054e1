"""The files beside the database: its lock, how far the store had come, large results, and the write-ahead log moved on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from taskgate import clock
from taskgate.atomic_files import sync_folder
from taskgate.core.errors import GatewayFault

# Moves committed pages from the log into the database file, beside the writer instead of in its way.
#
# SQLite would do this inside some unlucky commit, which then takes ten times as long as the others. Here a thread of
# its own copies while the writer goes on, little and often, and syncs what it has copied: SQLite leaves that to the one
# copy that reaches the end of the log, which would then have to wait for all the others' pages. Once the log is long
# enough, the writer makes that last copy between two commits; it is short, and the log starts over from its beginning.

COMMITS_BETWEEN: Final = 32
COMMITS_BETWEEN_LOOKS: Final = 8
MAX_LOG_BYTES: Final = 16 << 20
"""A log that is larger is copied at once, however few commits are in it."""
START_OVER_BYTES: Final = 12 << 20
"""A log that is shorter goes on where it is."""
_PAGE_BYTES: Final = 4096
_STOP_WITHIN_S: Final = 10.0


class Checkpointer:
    """`committed` is called by the committing thread only."""

    def __init__(self, connection: sqlite3.Connection, log: Path, sync: Callable[[], None]) -> None:
        self._connection = connection
        self._log = log
        self._sync = sync
        self._wanted = threading.Event()
        self._is_long = threading.Event()
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
        """After each commit, while nobody writes: make the last copy of a long log, and ask for the next one in time."""
        if self._is_long.is_set():
            self._is_long.clear()
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
            pages = _checkpoint(self._connection)
            self._sync()
            if pages * _PAGE_BYTES >= START_OVER_BYTES:
                self._is_long.set()


def _checkpoint(connection: sqlite3.Connection) -> int:
    """How many pages are in the log."""
    try:
        pages: int = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    except sqlite3.OperationalError:
        # Nothing is lost: the pages stay in the log, and the next commit will tell whether the disk is in trouble.
        return 0
    return pages


# A lock that makes sure only one process works on a store. The kernel releases it with the process, also after SIGKILL.
#
# Two files are locked: one beside the database, which names the holder, and the database itself, so that neither
# deleting the first nor reaching the database by another path (a link to it) admits a second owner.

_TRIES: Final = 5
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class StoreInUse(GatewayFault):
    """Another process works on this store."""


class FileLock:
    """Held from construction until `release`. The files stay; only the locks on them matter.

    Release it after the last connection to the database is closed: to close any descriptor of a file drops the locks
    that SQLite holds on it in the same process.
    """

    def __init__(self, database: Path) -> None:
        self._held: list[int] = []
        try:
            beside = self._lock_beside(database)
            # Arguments and results are in this file and in the log beside it, which takes over its permissions.
            self._held.append(os.open(database, _FLAGS, 0o600))
            if not _locked(self._held[-1]):
                raise _in_use(database, beside)
        except BaseException:
            self.release()
            raise
        os.ftruncate(beside, 0)
        os.pwrite(beside, str(os.getpid()).encode(), 0)

    def _lock_beside(self, database: Path) -> int:
        path = database.with_name(database.name + ".lock")
        for _ in range(_TRIES):
            fd = _open_plain_file(path)
            if not _locked(fd):
                problem = _in_use(database, fd)
                os.close(fd)
                raise problem
            if _is_still_there(fd, path):
                self._held.append(fd)
                return fd
            os.close(fd)
        raise GatewayFault("store_unavailable", f"The lock file {path} is removed again and again by somebody.")

    def sync_database(self) -> None:
        """Wait until the disk has what was written to the database so far."""
        # A disk that refuses refuses SQLite's own sync too, which is the one that counts.
        with contextlib.suppress(OSError):
            os.fdatasync(self._held[-1])

    def release(self) -> None:
        """Let go of both, the database first: whoever gets the other must get this one too."""
        while self._held:
            os.close(self._held.pop())


def _open_plain_file(path: Path) -> int:
    try:
        fd = os.open(path, _FLAGS | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise GatewayFault(
            "store_unavailable",
            f"The lock file {path} is a link, which another process could point elsewhere. Remove it and start again.",
        ) from None
    return fd


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still_there(fd: int, path: Path) -> bool:
    """Whether the locked file is the one that the next process will find: it may have been deleted meanwhile."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _in_use(database: Path, beside: int) -> StoreInUse:
    holder = os.pread(beside, 32, 0).decode("ascii", "replace").strip()
    return StoreInUse(
        "store_unavailable",
        f"Another Taskgate (process {holder or 'unknown'}) is using the store {database}. "
        "Stop it first, or give this one its own `store.url`.",
    )


# How far the store had come when it was last written, in a few bytes beside the database.
#
# A database that is put back from a backup looks like any other: its tasks wait as they did then, although they may
# have run since. The number of the last audit row is kept here after each commit, so a start that finds less in the
# database than here knows that it has an older one. Leave this file out of backups. Each write follows its commit, so
# it is never ahead by itself.

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


# Results too large for the database live in files beside it, one file each.
#
# A file is complete and synced, and so is its directory entry, before the commit that names it. So a named file always
# exists; a file that nobody names is an orphan of a crash or of a refused write, and is swept.

_ORPHAN_AGE_S: Final = 600


class SpillFiles:
    """The folder `<database>.results`."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + ".results")

    def write(self, task_id: str, body: bytes) -> str:
        """Make the bytes durable; gives the name under which to find them."""
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder.parent)
        name = f"{task_id}.{secrets.token_hex(8)}"
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
        """Remove files that no row names. Young ones may belong to a write that has not committed yet."""
        if not self._folder.is_dir():
            return 0
        with os.scandir(self._folder) as entries:
            orphans = [
                entry.name
                for entry in entries
                if entry.name not in named and now_s - entry.stat().st_mtime >= older_than_s
            ]
        return self.remove(orphans)
