"""Records of changed settings files: write one before a lasting change (`install`), and undo the change later."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from taskgate.atomic_files import replace_file
from taskgate.config.clients.client import Format, SettingsPlace
from taskgate.config.clients.found_servers import read_settings
from taskgate.config.clients.install_plan import FileChange
from taskgate.config.clients.settings_text import restored

BACKUP_ENDING = ".taskgate-backup"
_BACKUP_NOTE = "configuration-backup"


def record_name(path: Path) -> str:
    """Return the record's file name for a settings file, independent of how its path is spelled."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24] + ".json"


def keep_record(folder: Path, change: FileChange) -> Path:
    """Write a record of a lasting change (`install`), so that it can be undone later."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / record_name(change.path)
    write_file(path, record_text(change), mode=0o600)
    return path


def backup_of(path: Path) -> Path:
    """Return the path of the backup of a file."""
    return path.with_name(path.name + BACKUP_ENDING)


def note_backup(folder: Path, backup: Path) -> None:
    """Record the path of a backup, so that `undo` removes it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(folder / _BACKUP_NOTE, str(backup), mode=0o600)


def _remove_noted_backup(folder: Path) -> None:
    note = folder / _BACKUP_NOTE
    if note.is_file():
        Path(note.read_text(encoding="utf-8")).unlink(missing_ok=True)
        note.unlink()


def undo(folder: Path) -> list[str]:
    """Revert every change that has a record in a folder, and remove the backups. Return a note for each."""
    notes = []
    for record in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        change = read_record(record.read_text(encoding="utf-8"))
        if change is None:
            notes.append(f"{record} is not a valid record; nothing was changed")
            continue
        restore_file(change)
        record.unlink()
        backup_of(change.path).unlink(missing_ok=True)
        notes.append(f"{change.path}: restored")
    if notes and not any(folder.glob("*.json")):
        _remove_noted_backup(folder)
    return notes


def restore_file(change: FileChange) -> None:
    """Restore the file, or, if the client changed it meanwhile, only its servers."""
    current = read_settings(change.path)
    if current == change.after:
        if change.existed:
            write_file(change.path, change.before)
        else:
            change.path.unlink(missing_ok=True)
        return
    if current == change.before:
        return
    for place in reversed(change.places):
        current = restored(current, change.before, place)
    write_file(change.path, current)


def write_file(path: Path, text: str, mode: int | None = None) -> None:
    """Replace a file atomically, keeping its permissions and following symbolic links."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    replace_file(target, text.encode(), mode)


def record_text(change: FileChange) -> str:
    places = [{"pointer": list(p.pointer), "format": p.format.value, "main": p.main} for p in change.places]
    record = {
        "path": str(change.path),
        "before": change.before,
        "after": change.after,
        "existed": change.existed,
        "places": places,
        "pid": os.getpid(),
    }
    return json.dumps(record)


def read_record(text: str) -> FileChange | None:
    try:
        record: dict[str, Any] = json.loads(text)
        path = Path(record["path"])
        places = tuple(
            SettingsPlace(path, tuple(p["pointer"]), Format(p["format"]), bool(p["main"])) for p in record["places"]
        )
        return FileChange(
            path=path,
            before=str(record["before"]),
            after=str(record["after"]),
            existed=bool(record["existed"]),
            places=places,
        )
    except (ValueError, KeyError, TypeError):
        return None
