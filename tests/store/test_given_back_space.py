"""The file of a SQLite store gets smaller when rows are deleted: by itself while nothing is written, and by `store compact`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.commands import command
from tests.harness.raised import raises_error
from tests.store.call_factory import DEADLINE_S, a_call

from taskgate.ports.store_answers import Change
from taskgate.store.locks import NO_LOCKS
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite import writer
from taskgate.store.sqlite.compact import compact, space_of
from taskgate.store.sqlite.last_known import mark_beside
from taskgate.store.sqlite.store import SqliteStore, open_store
from taskgate.store.transaction import Transaction

BODY = b'{"x":"' + b"y" * 60_000 + b'"}'
CALLS = 60


class _Usage(NamedTuple):
    free: int


async def filled_and_emptied(store: SqliteStore) -> None:
    """Write some megabytes and delete them again."""
    for _ in range(CALLS):
        assert isinstance(await store.do(Accept(a_call(arguments=BODY))), Change)
    await store.engine.write(_delete, NO_LOCKS)


def _delete(tx: Transaction) -> None:
    connection: sqlite3.Connection = tx._connection  # type: ignore[attr-defined]
    connection.execute("DELETE FROM task_calls WHERE length(arguments) > 10000")


def pages(file: Path) -> tuple[int, int]:
    """All pages, and the free ones of them."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        names = ("page_count", "freelist_count")
        counts = [int(database.execute(f"PRAGMA {name}").fetchone()[0]) for name in names]
        return counts[0], counts[1]


def older_file(file: Path) -> None:
    """As versions without this created it."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA auto_vacuum=NONE")
        database.execute("VACUUM")
        assert database.execute("PRAGMA auto_vacuum").fetchone()[0] == 0


async def test_free_pages_are_given_back_while_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KEPT_FREE_PAGES", 100)
    monkeypatch.setattr(writer, "GIVE_BACK_EVERY_S", 0.001)
    file = tmp_path / "store.db"
    store = open_store(file)
    await filled_and_emptied(store)
    async with asyncio.timeout(DEADLINE_S):
        while pages(file)[1] > 100:
            await asyncio.sleep(0.01)
    assert pages(file)[0] < 400
    assert isinstance(await store.do(Accept(a_call())), Change)
    await store.close()
    assert file.stat().st_size < 400 * 4096


async def test_no_page_is_given_back_while_a_batch_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_FREE_PAGES", -1)
    monkeypatch.setattr(writer, "GIVE_BACK_EVERY_S", 3_600.0)
    store = open_store(tmp_path / "store.db")
    portions: list[None] = []
    monkeypatch.setattr(writer, "give_back_pages", lambda _connection: portions.append(None))
    await store.do(Accept(a_call()))
    written = asyncio.create_task(store.do(Accept(a_call())))
    await asyncio.sleep(0)
    store.engine.writer._give_back()
    assert isinstance(await written, Change)
    assert not portions
    store.engine.writer._give_back()
    assert isinstance(await store.do(Accept(a_call())), Change)
    assert len(portions) == 1
    await store.close()


async def test_a_file_of_an_older_version_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_FREE_PAGES", 0)
    monkeypatch.setattr(writer, "GIVE_BACK_EVERY_S", 0.001)
    file = tmp_path / "store.db"
    await open_store(file).close()
    older_file(file)
    store = open_store(file)
    await filled_and_emptied(store)
    before = pages(file)
    for _ in range(10):
        await asyncio.sleep(0.005)
        assert isinstance(await store.do(Accept(a_call())), Change)
    assert pages(file)[0] >= before[0]
    await store.close()


async def test_compacting_converts_an_older_file_and_is_no_restore(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    await open_store(file).close()
    older_file(file)
    store = open_store(file)
    kept = await store.do(Accept(a_call()))
    assert isinstance(kept, Change)
    await filled_and_emptied(store)
    with raises_error("store_unavailable", "store.db"):
        compact(file)
    await store.close()
    mark = mark_beside(file).read_bytes()

    space = space_of(file)
    assert not space.gives_back
    assert space.unused_bytes > CALLS * 50_000
    assert 0 < space.needed_bytes < space.bytes
    before, after = compact(file)
    assert before[:3] == space[:3]
    assert after.bytes < before.bytes - CALLS * 50_000
    assert (after.gives_back, after.unused_bytes) == (True, 0)
    assert file.stat().st_size == after.bytes
    assert mark_beside(file).read_bytes() == mark
    assert not [part for part in tmp_path.iterdir() if part.suffix not in (".db", ".known", ".lock", ".results")]

    again = open_store(file)
    assert not again.engine.state.restore.is_restored
    assert await again.ask(FindTask(kept.task.id)) is not None
    await again.close()


async def test_compacting_without_space_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store.db"
    store = open_store(file)
    await filled_and_emptied(store)
    await store.close()
    before, needed = pages(file), space_of(file).needed_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(needed - 1))
    with raises_error("store_unavailable", f"{needed:,}", f"{needed - 1:,}"):
        compact(file)
    assert pages(file) == before


async def test_the_command_reports_and_compacts(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = open_store(file)
    await filled_and_emptied(store)
    config = tmp_path / "taskgate.yaml"
    config.write_text(f"servers: {{}}\nstore: {{url: 'sqlite:///{file}'}}\n")

    async def run(*more: str) -> tuple[int, dict[str, Any]]:
        words = ("store", "compact", "-c", str(config), "--json", *more)
        code, output, _ = await command(*words, env={"TASKGATE_STATE_DIR": str(tmp_path / "state")})
        return code, json.loads(output) if output else {}

    assert (await run())[0] != 0, "a gateway uses the store"
    await store.close()
    code, found = await run("--check")
    assert (code, found["bytes_after"]) == (0, None)
    assert found["unused_bytes"] > CALLS * 50_000
    code, found = await run()
    assert code == 0
    assert found["bytes_after"] < found["bytes"]
