"""A store and a configuration file of version 0.1.0 open in this one.

`version_0_1_0/store.sql` was written by the first Taskgate that could make tasks: five ended tasks of the demo server, one that
waits for an answer, and their log. `taskgate.yaml` is its example.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from taskgate.config import load_text
from taskgate.core.tasks.state import TaskState
from taskgate.store.operations.task_queries import FindTask, QuestionsOf, ResultBytes
from taskgate.store.sqlite.connection import migrations
from taskgate.store.sqlite.store import open_store

KEPT = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    path = tmp_path / "taskgate.db"
    writing = sqlite3.connect(path)
    writing.executescript((KEPT / "store.sql").read_text())
    writing.close()
    return path


def numbers(path: Path, query: str) -> list[int]:
    reading = sqlite3.connect(path)
    try:
        return [row[0] for row in reading.execute(query)]
    finally:
        reading.close()


async def test_an_old_store_is_migrated_and_keeps_its_tasks_questions_and_log(old_store: Path) -> None:
    (made_at,) = numbers(old_store, "SELECT max(finished_ms) FROM tasks")
    ids = numbers(old_store, "SELECT id FROM tasks ORDER BY id")
    audited = numbers(old_store, "SELECT count(*) FROM audit")
    store = open_store(old_store, clock=lambda: made_at + 1000)
    try:
        tasks = [await store.ask(FindTask(str(task_id))) for task_id in ids]
        states = [task.state for task in tasks if task is not None]
        assert sorted(states) == sorted([TaskState.COMPLETED] * 5 + [TaskState.INPUT_REQUIRED])
        results = [await store.ask(ResultBytes(task.id)) for task in tasks if task is not None]
        assert b"Wrote x." in b"".join(result for result in results if result is not None)
        assert [len(await store.ask(QuestionsOf(str(task_id)))) for task_id in ids].count(1) == 1
    finally:
        await store.close()
    assert numbers(old_store, "PRAGMA user_version") == [len(migrations())]
    assert numbers(old_store, "SELECT count(*) FROM audit") >= audited


def test_an_old_configuration_file_loads(old_store: Path) -> None:
    assert list(load_text((KEPT / "taskgate.yaml").read_text(), environment={}).root.servers) == ["files"]
