"""A process that is killed while it compacts a store loses nothing, and the file does not count as restored."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.store.call_factory import a_call
from tests.store.test_given_back_space import filled_and_emptied, older_file

from taskgate.ports.store_answers import Change
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite import compact as compacting
from taskgate.store.sqlite.compact import compact
from taskgate.store.sqlite.connection import rewrite_file
from taskgate.store.sqlite.last_known import mark_beside
from taskgate.store.sqlite.store import open_store

KEPT = 700
BODY_BYTES = 9_000
VACUUM, CHECKPOINT = "VACUUM", "PRAGMA wal_checkpoint"


class Step(NamedTuple):
    """Where the process is killed: in or before which statement, and behind which part of the size of the compacted file."""

    statement: str
    part: float | None

    def __str__(self) -> str:
        return f"{self.statement} {self.part}"


STEPS = [
    Step(VACUUM, None),
    Step(VACUUM, 0.3),
    Step(VACUUM, 0.9),
    # The log has a few bytes more for each page than the temporary copy: this is in the log.
    Step(VACUUM, 1.003),
    Step(CHECKPOINT, None),
    Step(CHECKPOINT, 0.1),
    Step(CHECKPOINT, 0.9),
]


async def an_older_store(folder: Path) -> Path:
    """A file of an older version, with rows larger than SQLite's cache and with free pages."""
    file = folder / "store.db"
    await open_store(file).close()
    older_file(file)
    store = open_store(file)
    for _ in range(KEPT):
        body = b'{"x":"' + secrets.token_hex(BODY_BYTES // 2).encode() + b'"}'
        assert isinstance(await store.do(Accept(a_call(arguments=body))), Change)
    await filled_and_emptied(store)
    await store.close()
    return file


def content(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, after the log was read as at a start."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(database.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


def killed(file: Path, step: Step, compacted_bytes: int) -> int:
    """Return the signal."""
    limit = [] if step.part is None else [str(int(step.part * compacted_bytes))]
    command = [sys.executable, "-m", "tests.store.killed_compaction", str(file), step.statement, *limit]
    return -subprocess.run(command, check=False, timeout=250).returncode


@pytest.mark.skipif(sys.platform != "linux", reason="limits of file sizes end a process differently elsewhere")
async def test_nothing_is_lost_if_compacting_is_killed_at_any_step(tmp_path: Path) -> None:
    file = await an_older_store(tmp_path)
    before, mark = content(file), mark_beside(file).read_bytes()
    assert len(before["tasks"]) > KEPT
    _, compacted = compact(Path(shutil.copy(file, tmp_path / "copy.db")))
    for step in STEPS:
        assert killed(file, step, compacted.bytes) in (signal.SIGXFSZ, signal.SIGKILL), step
        assert content(file) == before, step
        assert mark_beside(file).read_bytes() == mark, step
        older_file(file)
    compact(file)
    assert content(file) == before
    store = open_store(file)
    assert not store.state.restore.is_restored
    await store.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
async def test_the_temporary_copy_is_written_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The space is checked there."""
    file = await an_older_store(tmp_path)
    found = set[str]()

    def look() -> None:
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/self/fd/{number}"))

    def watched(connection: sqlite3.Connection, *more: Any) -> str | None:
        connection.set_progress_handler(look, 100)
        return rewrite_file(connection, *more)

    monkeypatch.setattr(compacting, "rewrite_file", watched)
    compact(file)
    copies = [Path(path) for path in found if "etilqs" in path]
    assert copies
    assert {copy.parent for copy in copies} == {tmp_path}
