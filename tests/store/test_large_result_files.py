"""A result that is too large for a row is on the disk before the commit that names it: its bytes, its name and its folder's name.

A process that is killed loses nothing that it has written, so only the order of the calls shows a missing sync.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.harness.unchecked import just_go
from tests.store.call_factory import a_call

from taskgate.core.tasks.transition import ResultReceived
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.sqlite.store import open_store
from taskgate.store.sqlite.writer import Writer

BODY = b"x" * (3 << 20)


class Order:
    """What reached the disk, in order: the sync of a file with its size at that moment, the sync of a folder, a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self._folder = folder
        sync, commit = os.fsync, Writer._commit

        def synced(fd: int) -> None:
            sync(fd)
            path, size = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size
            is_folder = Path(path).is_dir()
            self.seen.append(("folder" if is_folder else "file", self._named(path), 0 if is_folder else size))

        def committed(writer: Writer) -> Any:
            self.seen.append(("commit", "", 0))
            return commit(writer)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Writer, "_commit", committed)

    def _named(self, path: str) -> str:
        return os.path.relpath(path, self._folder)


async def test_a_large_result_is_synced_before_the_commit_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store.db")
    first, second = a_call(), a_call()
    for call in (first, second):
        await store.do(Accept(call))
        await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))
    order = Order(monkeypatch, tmp_path)
    await store.do(Advance(first.id, ResultReceived(BODY)))
    (file,) = (tmp_path / "store.db.results").iterdir()
    assert order.seen == [
        ("folder", ".", 0),
        ("file", f"store.db.results/{file.name}", len(BODY)),
        ("folder", "store.db.results", 0),
        ("commit", "", 0),
    ]
    order.seen.clear()
    await store.do(Advance(second.id, ResultReceived(BODY)))
    assert [kind for kind, _, _ in order.seen] == ["file", "folder", "commit"]
    await store.close()


async def test_a_large_result_that_cannot_be_synced_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.core.errors import GatewayFault

    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.do(Accept(call))
    await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))

    def refused(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refused)
        with pytest.raises(GatewayFault) as failed:
            await store.do(Advance(call.id, ResultReceived(BODY)))
    assert failed.value.error_type == "store_unavailable"
    task = await store.ask(FindTask(call.id))
    assert task is not None
    assert task.outcome is None
    await store.close()
