"""What `taskgate check` reports about a store that cannot be opened."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskgate.assembly.stores import check_store
from taskgate.core.errors import GatewayFault

DAMAGED = b"this is not a database" * 100


def problem(path: Path) -> str:
    with pytest.raises(GatewayFault) as caught:
        check_store(path)
    assert caught.value.error_type == "store_unavailable"
    return caught.value.message


def test_only_a_damaged_store_may_be_moved_away(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(DAMAGED)
    assert "Restore a backup" in problem(tmp_path / "damaged.db")
    (tmp_path / "folder.db").mkdir()
    shown = problem(tmp_path / "folder.db")
    assert "Restore a backup" not in shown
    assert "permissions" in shown


def test_full_disk_is_named_where_the_store_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite reports it as an I/O error. Following the advice for a damaged file would lose accepted tasks."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=10, used=10, free=0))
    (tmp_path / "folder.db").mkdir()
    shown = problem(tmp_path / "folder.db")
    assert "no space" in shown
    assert "Restore a backup" not in shown
    (tmp_path / "damaged.db").write_bytes(DAMAGED)
    assert "Restore a backup" in problem(tmp_path / "damaged.db")


def test_usable_and_missing_stores_are_accepted(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "store.db").close()
    check_store(tmp_path / "store.db")
    check_store(tmp_path / "new.db")
