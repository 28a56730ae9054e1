"""What ends by two clocks: the one that can be set and the monotonic one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.virtual_time import EPOCH, the_loop, virtual_time

from taskgate import clock
from taskgate.store.sqlite.result_files import SpillFiles


@virtual_time
async def test_expiry_is_whichever_clock_is_first() -> None:
    expiries = clock.Expiries[str]()
    until = clock.wall() + 100
    assert not expiries.passed("a", until - clock.wall())
    the_loop().set_wall(EPOCH - 3600)
    the_loop().leap(99)
    assert not expiries.passed("a", until - clock.wall())
    assert expiries.over() == []
    the_loop().leap(1)
    assert expiries.passed("a", until - clock.wall())
    assert expiries.over() == ["a"]
    assert (expiries.left_s("a"), expiries.left_s("b")) == (0, None)
    expiries.forget("a")
    expiries.forget("a")
    assert expiries.over() == []
    assert expiries.passed("b", 0.0)


@virtual_time
async def test_first_reading_of_a_clock_is_kept() -> None:
    expiries = clock.Expiries[str]()
    expiries.note("a", 10)
    expiries.note("a", 1000)
    the_loop().leap(10)
    assert expiries.passed("a", 1000)


@virtual_time
async def test_expiries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.Expiries, "MOST", 2)
    expiries = clock.Expiries[int]()
    for key in range(5):
        expiries.note(key, 10)
    the_loop().leap(20)
    assert expiries.over() == [3, 4]


@virtual_time
async def test_file_of_uncommitted_result_is_kept_where_clock_is_set_forward(tmp_path: Path) -> None:
    """The file is written before the commit that names it. An hour forward makes it look old."""
    files = SpillFiles(tmp_path / "store.db")
    name = files.write("tg_1", b"result")
    path = tmp_path / "store.db.results" / name
    os.utime(path, (EPOCH, EPOCH))
    assert files.remove_orphans(set(), EPOCH + 3600) == 0
    assert path.exists()
    the_loop().leap(700)
    assert files.remove_orphans(set(), EPOCH + 3600) == 1
    assert not path.exists()
