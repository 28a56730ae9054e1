"""Change settings files for the run of one agent, and restore them at the end, on a signal, or after a crash.

Before a file changes, a record of it (old text, new text, where the servers are) is on disk, and the process holds a kernel
lock on the record. A record without a lock was left by a crash; the next start restores the file. If the client changed the
file meanwhile, those changes are kept: only the servers are restored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import msgspec

from taskgate import operating_system
from taskgate.atomic_files import sync_folder
from taskgate.config.clients.change_records import (
    BACKUP_ENDING,
    read_record,
    record_name,
    record_text,
    restore_file,
    write_file,
)
from taskgate.config.clients.install_plan import FileChange
from taskgate.config.clients.settings_text import SettingsError


class AlreadyWrapped(Exception):
    """Another process has changed the settings of the same client."""


class InUse(AlreadyWrapped):
    """That process is running."""


class LeftChanged(AlreadyWrapped):
    """That process crashed before it restored the settings."""


class Held(msgspec.Struct):
    """A record that this process has locked."""

    path: Path
    file: IO[str]
    change: FileChange


class Takeover:
    """Changes that are reverted by `end`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = list[Held]()

    def begin(self, changes: list[FileChange]) -> None:
        """Lock all files, then change them. On failure all changes are reverted."""
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
        """Restore all files. Return a note for each one that could not be restored."""
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
            raise InUse(f"{change.path} is in use by another `taskgate wrap`; stop that one first")
        if file.read().strip():
            file.close()
            raise LeftChanged(f"{change.path} was left changed by a crash; run `taskgate wrap --recover` first")
        return Held(path, file, change)


def recover(folder: Path) -> list[str]:
    """Restore files that crashed processes left changed. Records that a running process has locked are skipped."""
    notes = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        file = _locked(path)
        if file is None:
            continue
        with file:
            change = read_record(file.read())
            if change is None:
                path.unlink(missing_ok=True)
                continue
            note = _put_back(Held(path, file, change))
            notes.append(note or f"{change.path}: restored after a crash")
    return notes


def _locked(path: Path) -> IO[str] | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # The previous owner may have removed the file between our open and our lock.
        if not operating_system.lock(descriptor) or os.fstat(descriptor).st_nlink == 0:
            raise OSError
    except OSError:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "r+", encoding="utf-8", newline="")


def _write_record(held: Held) -> None:
    held.file.seek(0)
    held.file.truncate()
    held.file.write(record_text(held.change))
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
        return f"{held.change.path}: could not be restored ({error}); the original text is in {backup}"
    held.path.unlink(missing_ok=True)
    return None
