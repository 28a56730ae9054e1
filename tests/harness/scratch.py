"""Where tests store their files: in memory if there is enough. A store waits for the disk at every commit, and thousands of
tests make one.

The folder belongs to one run and is removed with it; after a failed run it stays for an hour at least. Nothing changes if
`TMPDIR` is set, or if the memory file system is small or does not allow execution (`/dev/shm` of many containers).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

MEMORY = Path("/dev/shm")
MIN_FREE = 4 << 30
OLD_S = 3600
_OURS = re.compile(r"tg-(\d+)")


def scratch_in_memory() -> Path | None:
    """Create the folder of this run and set it for all started programs; None if files stay where they are."""
    if "TMPDIR" in os.environ or not _is_good(MEMORY):
        return None
    _remove_those_of_past_runs()
    folder = MEMORY / f"tg-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    # A database may run as another user.
    folder.chmod(0o755)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def _is_good(place: Path) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return os.access(place, os.W_OK) and not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > MIN_FREE


def _remove_those_of_past_runs() -> None:
    for folder in MEMORY.iterdir():
        made = _OURS.fullmatch(folder.name)
        if made is not None and not Path("/proc", made[1]).exists() and _age_s(folder) > OLD_S:
            shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    """Another container may share this memory, and its processes are not in our /proc, so recent folders are kept."""
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0
