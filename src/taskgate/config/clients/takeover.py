"""Making a planned change to settings files, and taking it back: at the end, on a signal, or after a crash.

Before a file changes, a record of it (old text, new text, where the servers are) is on disk, and a kernel lock on the
record says that somebody is at work. A record whose lock nobody holds was left by a crash; the next start takes the
change back. A file that the client itself has changed meanwhile keeps those changes: only the servers are put back.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from taskgate.atomic_files import replace_file, sync_folder
from taskgate.config.clients.client import Format, SettingsPlace
from taskgate.config.clients.plans import FileChange, read_settings
from taskgate.config.clients.settings_text import SettingsError, restored

BACKUP_ENDING = ".taskgate-backup"
_BACKUP_NOTE = "configuration-backup"


class AlreadyWrapped(Exception):
    """Another process is in front of the same client."""


@dataclass(slots=True)
class Held:
    """A record that this process holds."""

    path: Path
    file: IO[str]
    change: FileChange


class Takeover:
    """Changes that are in force until `end`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[Held] = []

    def begin(self, changes: list[FileChange]) -> None:
        """Lock every file, then change them all; on any failure nothing stays changed."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            for change in changes:
                self._held.append(self._lock(change))
            for held in self._held:
                _write_record(held)
                write_file(held.change.path, held.change.after)
        except BaseException:
            self.end()
            raise

    def end(self) -> list[str]:
        """Put everything back; what could not be put back is said, and its record stays."""
        notes = []
        while self._held:
            held = self._held.pop()
            note = _put_back(held)
            if note:
                notes.append(note)
            held.file.close()
        return notes

    def _lock(self, change: FileChange) -> Held:
        path = self._folder / record_name(change.path)
        file = _locked(path)
        if file is None:
            raise AlreadyWrapped(f"{change.path} is held by another `taskgate wrap`; end that one first")
        if file.read().strip():
            file.close()
            raise AlreadyWrapped(f"{change.path} was left changed by a crash; run `taskgate wrap --recover` first")
        return Held(path, file, change)


def recover(folder: Path) -> list[str]:
    """Take back what crashed processes left behind; records that a living process holds are left alone."""
    notes = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        file = _locked(path)
        if file is None:
            continue
        with file:
            change = _read_record(file.read())
            if change is None:
                path.unlink(missing_ok=True)
                continue
            note = _put_back(Held(path, file, change))
            notes.append(note or f"{change.path}: put back after an unclean end")
    return notes


def record_name(path: Path) -> str:
    """The record's name for a settings file: the same for every way to spell its path."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24] + ".json"


def keep_record(folder: Path, change: FileChange) -> Path:
    """A record of a lasting change (`install`), so that it can be undone later."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / record_name(change.path)
    write_file(path, _record_text(change), mode=0o600)
    return path


def backup_of(path: Path) -> Path:
    """Where the copy of a file is kept that is about to be changed."""
    return path.with_name(path.name + BACKUP_ENDING)


def note_backup(folder: Path, backup: Path) -> None:
    """Remember a copy beside the records, so that `undo` removes it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(folder / _BACKUP_NOTE, str(backup), mode=0o600)


def _remove_noted_backup(folder: Path) -> None:
    note = folder / _BACKUP_NOTE
    if note.is_file():
        Path(note.read_text(encoding="utf-8")).unlink(missing_ok=True)
        note.unlink()


def undo(folder: Path) -> list[str]:
    """Take back every lasting change that has a record in a folder. Copies of what was changed are removed with it."""
    notes = []
    for record in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        change = _read_record(record.read_text(encoding="utf-8"))
        if change is None:
            notes.append(f"{record} is not readable; nothing was changed")
            continue
        restore_file(change)
        record.unlink()
        backup_of(change.path).unlink(missing_ok=True)
        notes.append(f"{change.path}: put back")
    if notes and not any(folder.glob("*.json")):
        _remove_noted_backup(folder)
    return notes


def restore_file(change: FileChange) -> None:
    """The file as it was, or, if the client changed it meanwhile, with its servers as they were."""
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
    """Replace a file in one step, keeping its rights; a symbolic link keeps pointing where it points."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    replace_file(target, text.encode(), mode)


def _locked(path: Path) -> IO[str] | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us may have removed the file between our opening and our locking it.
        if os.fstat(descriptor).st_nlink == 0:
            raise OSError
    except OSError:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "r+", encoding="utf-8", newline="")


def _write_record(held: Held) -> None:
    held.file.seek(0)
    held.file.truncate()
    held.file.write(_record_text(held.change))
    held.file.flush()
    os.fsync(held.file.fileno())
    sync_folder(held.path.parent)


def _put_back(held: Held) -> str | None:
    try:
        restore_file(held.change)
    except (SettingsError, OSError) as error:
        backup = held.change.path.with_name(held.change.path.name + BACKUP_ENDING)
        write_file(backup, held.change.before, mode=0o600)
        held.path.unlink(missing_ok=True)
        return f"{held.change.path}: could not be put back ({error}); its old text is in {backup}"
    held.path.unlink(missing_ok=True)
    return None


def _record_text(change: FileChange) -> str:
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


def _read_record(text: str) -> FileChange | None:
    try:
        record: dict[str, Any] = json.loads(text)
        path = Path(record["path"])
        places = tuple(
            SettingsPlace(path, tuple(p["pointer"]), Format(p["format"]), bool(p["main"])) for p in record["places"]
        )
        return FileChange(path, str(record["before"]), str(record["after"]), bool(record["existed"]), places)
    except (ValueError, KeyError, TypeError):
        return None
