"""Write small files as a whole: a reader finds the old content or the new one, also after a power failure.

Every file that Taskgate replaces is written here. The content goes to a temporary file beside the target, is synced, takes the
target's name in one step, and the folder is synced last. The temporary name is random and opened exclusively, so no two
writers ever share one: neither two threads of a process, nor two processes, nor two containers in which both are process 1.

Standard library only and cheap to import: the bridge uses it too.
"""

from __future__ import annotations

import os
from contextlib import suppress

ENDING = ".taskgate-tmp"
ABANDONED_AFTER_S = 3600.0

StrPath = str | os.PathLike[str]


def replace_file(path: StrPath, content: bytes, mode: int = 0o600) -> None:
    """Give the file this content, whether or not it exists. On OSError the file is as it was."""
    temporary = _written_beside(path, content, mode)
    try:
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    _sync_name(path)


def create_file(path: StrPath, content: bytes, mode: int = 0o600) -> None:
    """Make a new file. Raises FileExistsError if there is one: of several writers exactly one succeeds."""
    temporary = _written_beside(path, content, mode)
    try:
        os.link(temporary, path)
    finally:
        _remove(temporary)
    _sync_name(path)


def sync_folder(folder: StrPath) -> None:
    """Wait until the disk has the names in a folder: a synced file whose name was lost is lost too."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def temporary_name(path: StrPath) -> str:
    """A name beside the file that no other writer uses, for content that another library writes."""
    folder, name = os.path.split(os.fspath(path))
    return os.path.join(folder, f".{name}.{os.urandom(8).hex()}{ENDING}")


def remove_abandoned(folder: StrPath, now: float, older_than_s: float = ABANDONED_AFTER_S) -> int:
    """Remove temporary files that a killed process left in a folder; returns their number. Young ones may be in use."""
    count = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(ENDING):
                continue
            with suppress(OSError):
                if now - entry.stat(follow_symlinks=False).st_mtime >= older_than_s:
                    os.unlink(entry.path)
                    count += 1
    return count


def _written_beside(path: StrPath, content: bytes, mode: int) -> str:
    """The name of a synced temporary file with this content."""
    temporary = temporary_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _sync_name(path: StrPath) -> None:
    sync_folder(os.path.dirname(os.fspath(path)) or ".")


def _remove(temporary: str) -> None:
    with suppress(OSError):
        os.unlink(temporary)
