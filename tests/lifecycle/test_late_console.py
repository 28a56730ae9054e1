"""The console is loaded with its first request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskgate.lifecycle import late_console
from taskgate.lifecycle.late_console import LateConsole


class Console:
    """What `LateConsole` uses of the console."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.live = SimpleNamespace(end_all=lambda: self.steps.append("streams ended"))
        self.api = SimpleNamespace(calls=SimpleNamespace(in_progress=["call"], close=self._close))
        self.routes = ("route",)

    async def __call__(self, *_request: Any) -> None:
        self.steps.append("request")

    async def _close(self) -> None:
        self.steps.append("closed")


def console_of(made: list[Console]) -> LateConsole:
    def create() -> Any:
        made.append(Console())
        return made[-1]

    return LateConsole(create)


async def test_modules_are_loaded_in_a_thread_by_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, ...]] = []

    async def load(*modules: str) -> None:
        loaded.append(modules)

    monkeypatch.setattr(late_console, "load", load)
    made: list[Console] = []
    console = console_of(made)
    for _ in range(2):
        await console({}, None, None)  # type: ignore[arg-type]
    assert [found.steps for found in made] == [["request", "request"]]
    assert loaded == [("taskgate.dashboard.site", "taskgate.assembly.console_configuration")]


async def test_end_of_a_gateway_does_not_create_the_console() -> None:
    made: list[Console] = []
    console = console_of(made)
    assert list(console.replies_in_progress) == []
    console.end_streams()
    await console.close()
    assert made == []


async def test_streams_opened_after_the_end_began_are_ended() -> None:
    made: list[Console] = []
    console = console_of(made)
    console.end_streams()
    assert console.routes == ("route",)
    assert made[0].steps == ["streams ended"]


async def test_console_in_use_ends_with_the_gateway() -> None:
    made: list[Console] = []
    console = console_of(made)
    assert console.dashboard is made[0]
    assert list(console.replies_in_progress) == ["call"]
    console.end_streams()
    await console.close()
    assert made[0].steps == ["streams ended", "closed"]
