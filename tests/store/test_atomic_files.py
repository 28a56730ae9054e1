"""Files that are replaced as a whole: by several writers at once, through failures, and in an order that a crash respects."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskgate import atomic_files
from taskgate.atomic_files import create_file, remove_abandoned, replace_file
from taskgate.inbound.gateway_secrets import operator_token, replace_operator_token, set_passphrase, stored_passphrase

DEADLINE_S = 60


class OverlappingWriter:
    """Stops the first writer after its temporary file is complete, until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._step: Callable[..., None] = getattr(os, name)
        self.complete, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(os, name, self._stop_once)

    def _stop_once(self, *arguments: Any) -> None:
        if not self.complete.is_set():
            self.complete.set()
            assert self.go_on.wait(DEADLINE_S)
        self._step(*arguments)


def _overlapping(stopped: OverlappingWriter, first: Callable[[], None], second: Callable[[], None]) -> list[OSError]:
    """The first writer is stopped in the middle while the second one runs to its end. What each raised."""
    problems: list[OSError] = []

    def write(writer: Callable[[], None]) -> None:
        try:
            writer()
        except OSError as problem:
            problems.append(problem)

    thread = threading.Thread(target=write, args=(first,))
    thread.start()
    assert stopped.complete.wait(DEADLINE_S)
    write(second)
    stopped.go_on.set()
    thread.join(DEADLINE_S)
    return problems


def test_two_writers_of_one_file_do_not_share_a_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, stopped = tmp_path / "file", OverlappingWriter(monkeypatch, "replace")
    problems = _overlapping(stopped, lambda: replace_file(path, b"one"), lambda: replace_file(path, b"another"))
    assert problems == []
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_of_two_creators_of_one_file_exactly_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, stopped = tmp_path / "file", OverlappingWriter(monkeypatch, "link")
    problems = _overlapping(stopped, lambda: create_file(path, b"one"), lambda: create_file(path, b"another"))
    assert [type(problem) for problem in problems] == [FileExistsError]
    assert path.read_bytes() == b"another"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("write", "step"), [(replace_file, "replace"), (create_file, "link")])
def test_content_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None], step: str
) -> None:
    order: list[str] = []
    fsync, named = os.fsync, getattr(os, step)

    def noted_fsync(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def noted_step(*arguments: str) -> None:
        order.append("name")
        named(*arguments)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, step, noted_step)
    write(tmp_path / "file", b"content")
    assert order == ["content", "name", "folder"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError) as failed:
            replace_file(path, b"new")
    assert failed.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_only_the_owner_can_read_a_file_unless_its_writer_allows_more(tmp_path: Path) -> None:
    replace_file(tmp_path / "private", b"x")
    replace_file(tmp_path / "public", b"x", 0o644)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    assert modes == {"private": 0o600, "public": 0o644}


def test_temporary_files_of_killed_writers_are_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(atomic_files, "_remove", lambda _temporary: None)
        killed.setattr(os, "replace", lambda *_names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replace_file(tmp_path / "file", b"content")
    (left,) = tmp_path.iterdir()
    written = left.stat().st_mtime
    replace_file(tmp_path / "kept", b"")
    assert remove_abandoned(tmp_path, written + 60) == 0
    assert remove_abandoned(tmp_path, written + 7200) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert remove_abandoned(tmp_path / "missing", written) == 0


def _fail_to_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_names: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(os, "link", fail)


def test_a_passphrase_that_cannot_be_replaced_stays_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start without the file would decide approvals without asking for a passphrase."""
    set_passphrase(tmp_path, "first")
    kept = stored_passphrase(tmp_path)
    with monkeypatch.context() as patched:
        _fail_to_replace(patched)
        with pytest.raises(OSError) as failed:
            set_passphrase(tmp_path, "second")
    assert failed.value.errno == errno.EIO
    assert kept is not None
    assert stored_passphrase(tmp_path) == kept


def test_an_operator_token_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = operator_token(tmp_path)
    with monkeypatch.context() as patched:
        _fail_to_replace(patched)
        with pytest.raises(OSError) as failed:
            replace_operator_token(tmp_path, "tgop_" + "x" * 40)
    assert failed.value.errno == errno.EIO
    assert operator_token(tmp_path) == kept
