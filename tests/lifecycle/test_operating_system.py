"""Every branch of what differs between systems, with the parts of another system put in place."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskgate import operating_system

DEADLINE_S = 30.0


def opened(path: Path) -> int:
    return os.open(path, operating_system.PRIVATE_FILE_FLAGS, 0o600)


def test_lock_excludes_other_descriptors_until_it_is_closed(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "lock"), opened(tmp_path / "lock")
    assert operating_system.lock(first)
    assert not operating_system.lock(second)
    os.close(first)
    assert operating_system.lock(second)
    os.close(second)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system has no such flag")
def test_lock_files_are_not_opened_through_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        opened(tmp_path / "link")


@pytest.mark.parametrize(("wait", "mode"), [(False, "try"), (True, "wait")])
def test_windows_locks_one_byte_behind_the_content(tmp_path: Path, wait: bool, mode: str) -> None:
    calls: list[tuple[str, int, int]] = []

    def locking(descriptor: int, how: str, count: int) -> None:
        calls.append((how, os.lseek(descriptor, 0, os.SEEK_CUR), count))

    windows = SimpleNamespace(locking=locking, LK_LOCK="wait", LK_NBLCK="try")
    descriptor = opened(tmp_path / "lock")
    assert operating_system.lock(descriptor, wait=wait, with_flock=None, with_msvcrt=windows)
    assert calls == [(mode, 1 << 30, 1)]
    os.close(descriptor)


def test_windows_reports_a_lock_that_another_process_holds(tmp_path: Path) -> None:
    def locking(*_: object) -> None:
        raise PermissionError

    windows = SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
    descriptor = opened(tmp_path / "lock")
    assert not operating_system.lock(descriptor, with_flock=None, with_msvcrt=windows)
    os.close(descriptor)


class Connected:
    """A socket that answers for the credentials of its peer as the given system does."""

    def __init__(self, answer: bytes | OSError) -> None:
        self.answer = answer
        self.asked: list[tuple[int, int, int]] = []

    def getsockopt(self, *wanted: int) -> bytes:
        self.asked.append((wanted[0], wanted[1], wanted[2]))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def peer(connected: Any, platform: str) -> int | None:
    return operating_system.peer_user(connected, platform)


def test_peer_user_on_macos_is_the_second_number_of_its_structure() -> None:
    connected = Connected(struct.pack("ii", 0, 501) + bytes(68))
    assert (peer(connected, "darwin"), connected.asked) == (501, [(0, 1, 76)])


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux has this option")
def test_peer_user_on_linux_is_the_owner_of_the_other_end() -> None:
    one, other = socket.socketpair()
    assert operating_system.peer_user(one) == operating_system.own_user()
    one.close()
    other.close()
    connected = Connected(struct.pack("iii", 7, 1000, 1000))
    assert (peer(connected, "linux"), connected.asked[0][2]) == (1000, 12)


@pytest.mark.parametrize("answer", [OSError(), b""])
def test_peer_user_is_unknown_if_the_system_does_not_report_it(answer: bytes | OSError) -> None:
    assert peer(Connected(answer), "darwin") is None


def test_unix_sockets_are_not_inherited() -> None:
    assert operating_system.has_unix_sockets() is hasattr(socket, "AF_UNIX")
    made = operating_system.unix_socket(socket.SOCK_DGRAM)
    assert not made.get_inheritable()
    made.close()


def test_user_on_systems_without_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operating_system.own_user() == os.geteuid()
    monkeypatch.delattr(os, "geteuid")
    assert operating_system.own_user() == 0


def test_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operating_system.user_name(0) == "root"
    assert operating_system.user_name(3_999_999_999) == "3999999999"
    monkeypatch.setitem(__import__("sys").modules, "pwd", None)
    monkeypatch.setenv("USERNAME", "ann")
    assert operating_system.user_name(0) == "ann"
    monkeypatch.delenv("USERNAME")
    assert operating_system.user_name(0) == "0"


async def test_signals_call_functions_in_the_loop() -> None:
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()
    assert operating_system.on_signals(loop, {"SIGUSR2": arrived.set, "SIGOTHER": arrived.clear}) == ["SIGOTHER"]
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
    finally:
        loop.remove_signal_handler(signal.SIGUSR2)


class WindowsLoop:
    """An event loop without signal handlers, as those of Windows."""

    def __init__(self) -> None:
        self.called: list[Callable[[], object]] = []

    def add_signal_handler(self, sig: int, callback: Callable[[], object]) -> None:
        raise NotImplementedError

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        self.called.append(callback)
        return None


def test_signals_reach_a_loop_without_signal_handlers() -> None:
    loop, before = WindowsLoop(), signal.getsignal(signal.SIGUSR2)
    handlers = {"SIGUSR2": lambda: None}
    try:
        assert operating_system.on_signals(loop, handlers) == []
        signal.raise_signal(signal.SIGUSR2)
        assert loop.called == [handlers["SIGUSR2"]]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_group_is_killed_where_groups_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(("group", pid, number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(("process", pid, number)))
    operating_system.kill_group(4_000_001)
    monkeypatch.delattr(os, "killpg")
    operating_system.kill_group(4_000_001)
    assert killed == [("group", 4_000_001, signal.SIGKILL), ("process", 4_000_001, signal.SIGTERM)]


@pytest.mark.parametrize(
    ("platform", "words"),
    [("linux", None), ("darwin", "programs of servers"), ("win32", "taskgate reload"), ("freebsd14", "not tested")],
)
def test_limitations_are_stated_for_every_system(platform: str, words: str | None) -> None:
    stated = operating_system.limitations(platform)
    assert bool(stated) is (words is not None)
    assert words is None or any(words in sentence for sentence in stated)


def test_no_other_module_locks_files_or_asks_for_the_user() -> None:
    source = Path(operating_system.__file__).parent
    wrong = [
        f"{path.relative_to(source)}: {word}"
        for path in source.rglob("*.py")
        if path.name != "operating_system.py"
        for word in ("import fcntl", "import pwd", "os.geteuid", "add_signal_handler(signal.SIGTERM", "AF_UNIX")
        if word in path.read_text()
    ]
    assert wrong == []
