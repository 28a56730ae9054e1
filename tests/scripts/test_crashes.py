"""A script of ten calls and a crash at each of its writes: no call is lost, none that may run once runs twice."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scripts.ten_calls import CONFIG, Crash, crashing, drive, ledger_server, verdict
from tests.virtual_time import Gateway, run


async def one_crash(monkeypatch: pytest.MonkeyPatch, crash: Crash) -> list[str]:
    upstream, ran = ledger_server()
    config: dict[str, Any] = CONFIG
    async with Gateway(config, {"shop": upstream}) as gate:
        with crashing(monkeypatch, gate, crash):
            result = await drive(gate, crash)
        return verdict(result, ran)


WRITES = 37
"""As many writes as the script has without a crash, whichever of its outcomes arrive together."""


def crash_at(monkeypatch: pytest.MonkeyPatch, crash: Crash) -> None:
    assert run(lambda: one_crash(monkeypatch, crash)) == [], crash
    assert crash.happened


@pytest.mark.parametrize("at", [2, 7, 11, 16, 25, 33, WRITES])
def test_script_survives_a_crash_at_some_of_its_writes(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    crash_at(monkeypatch, Crash(at, after=at % 2 == 0))


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
def test_script_survives_a_crash_at_every_write(monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    crash_at(monkeypatch, Crash(at, after))


def test_script_without_a_crash_has_as_many_writes_as_the_long_test_assumes(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Crash(10_000, after=False)
    assert run(lambda: one_crash(monkeypatch, crash)) == []
    assert crash.writes == WRITES
