"""Which SQLite file a configuration uses, and whether a gateway could start on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from taskgate.atomic_files import create_file, replace_file
from taskgate.config.load import LoadedConfig
from taskgate.core.errors import GatewayFault
from taskgate.folders import gateway_key

SQLITE: Final = "sqlite:///"
FIRST: Final = "taskgate.db"
WRAPPED: Final = ".taskgate-wrap-"
NEEDED_BYTES: Final = 4 << 20
"""Free space without which a gateway does not start."""
_OWNER: Final = "taskgate.db.owner"
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def store_path(loaded: LoadedConfig) -> Path:
    """Return the SQLite file: the configured one, or one in the state directory. Nothing is written."""
    url = loaded.root.store.url if loaded.root.store is not None else None
    if url is None:
        return loaded.state_dir / _default_name(loaded)
    if not url.startswith(SQLITE):
        raise GatewayFault("store_unavailable", "This store is a PostgreSQL database and not a file.")
    return Path(url.removeprefix(SQLITE))


def claimed_store_path(loaded: LoadedConfig) -> Path:
    """Return the same file, and record that it belongs to this configuration."""
    path = store_path(loaded)
    if path == loaded.state_dir / FIRST and loaded.root.store is None:
        loaded.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = loaded.state_dir / _OWNER
        known, name = _owner(loaded.state_dir), _name(loaded).encode("utf-8", "surrogateescape")
        if known is not None and known != _name(loaded):
            replace_file(owner, name)
        elif known is None:
            with contextlib.suppress(FileExistsError):
                create_file(owner, name)
    return store_path(loaded)


def check_store(path: Path) -> None:
    """Raises GatewayFault if a gateway could not start on it: the file is no database, or its folder is not writable.

    Nothing is written, and a store that is in use is not opened.
    """
    folder = next((parent for parent in path.parents if parent.exists()), path.parent)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise GatewayFault(
            "store_unavailable",
            f"The folder {folder} cannot be written to. Set TASKGATE_STATE_DIR or store.url elsewhere.",
        )
    if not path.exists():
        return
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        ) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as problem:
        text = f"The store {path} cannot be opened: {problem}. {_remedy(problem, folder)}"
        raise GatewayFault("store_unavailable", text) from None


def _remedy(problem: sqlite3.Error, folder: Path) -> str:
    """Only a damaged file may be moved away: with it go the accepted tasks."""
    if problem.sqlite_errorcode in _DAMAGED:
        return "Restore a backup, or move it away to start empty."
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        return f"There is no space left on its disk: free at least {NEEDED_BYTES >> 20} MB."
    return "Check its permissions and its disk."


def _default_name(loaded: LoadedConfig) -> str:
    if loaded.path is None:
        return "demo.db"
    own = f"taskgate-{gateway_key(str(loaded.state_dir), str(loaded.path))[:8]}.db"
    if loaded.path.name.startswith(WRAPPED):
        return own
    owner = _owner(loaded.state_dir)
    return FIRST if owner is None or owner == _name(loaded) or not os.path.exists(owner) else own


def _name(loaded: LoadedConfig) -> str:
    return os.path.realpath(loaded.path) if loaded.path is not None else ""


def _owner(state_dir: Path) -> str | None:
    try:
        return (state_dir / _OWNER).read_text(encoding="utf-8", errors="surrogateescape").strip() or None
    except OSError:
        return None
