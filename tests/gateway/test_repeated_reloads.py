"""A changed file that is reported twice is applied once, and the sessions of a large gateway are notified in portions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from taskgate.config.load import LoadedConfig, load, load_again
from taskgate.core.catalog.entry import EntryKind
from taskgate.gateway.methods.subscriptions import SESSIONS_AT_ONCE, Subscriptions
from taskgate.lifecycle import reloading
from taskgate.lifecycle.reloading import Reloader

CONFIG = """
schema: 1
servers: {a: {url: "http://127.0.0.1:9/mcp", headers: {x-key: "${KEY}"}}}
cedar: {policies: [./p.cedar]}
governance: {defaults: {action: policy}}
"""


class Applied:
    """The app as the reloader uses it: the configuration in force, and how often one was applied."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self.loaded = loaded
        self.times = 0

    def reload(self, loaded: LoadedConfig) -> None:
        self.loaded, self.times = loaded, self.times + 1

    @property
    def plan(self) -> Any:
        return self

    registry: Any = property(lambda self: self)
    revision = 1


async def test_an_unchanged_configuration_is_applied_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "one")
    file, policy = tmp_path / "taskgate.yaml", tmp_path / "p.cedar"
    file.write_text(CONFIG)
    policy.write_text("permit(principal, action, resource);")
    app = Applied(load(file))
    reloader = Reloader(app, "127.0.0.1")  # type: ignore[arg-type]
    assert await reloader.reload(only_changes=True) is None
    assert app.times == 0
    assert await reloader.reload() is None
    assert app.times == 1
    policy.write_text("forbid(principal, action, resource);")
    assert await reloader.reload(only_changes=True) is None
    assert app.times == 2, "a file that the configuration refers to has changed"
    monkeypatch.setenv("KEY", "two")
    assert await reloader.reload(only_changes=True) is None
    assert app.times == 3, "a value that it refers to has changed"


async def test_file_without_references_is_loaded_only_if_its_text_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "taskgate.yaml"
    file.write_text("schema: 1\n")
    app = Applied(load(file))
    loads: list[LoadedConfig] = []

    def counted(loaded: LoadedConfig) -> LoadedConfig:
        loads.append(loaded)
        return load_again(loaded)

    monkeypatch.setattr(reloading, "load_again", counted)
    reloader = Reloader(app, "127.0.0.1")  # type: ignore[arg-type]
    assert await reloader.reload(only_changes=True) is None
    assert (len(loads), app.times) == (0, 0)
    file.write_text("schema: 1\nprofile: development\n")
    assert await reloader.reload(only_changes=True) is None
    assert (len(loads), app.times, app.loaded.root.profile) == (1, 1, "development")
    assert await reloader.reload() is None
    assert (len(loads), app.times) == (2, 2)
    file.unlink()
    assert await reloader.reload(only_changes=True) is not None
    assert app.times == 2


class Notified:
    """A session that counts what it is sent."""

    caller = narrowing = None

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def announce(self, notification: bytes) -> None:
        self.received.append(notification)


async def test_many_sessions_are_notified_in_portions() -> None:
    sessions: list[Any] = [Notified() for _ in range(2 * SESSIONS_AT_ONCE + 1)]
    Subscriptions().lists_changed(sessions, [EntryKind.TOOL, EntryKind.PROMPT], lambda _caller, _narrowing: True)
    assert sum(bool(session.received) for session in sessions) == SESSIONS_AT_ONCE
    async with asyncio.timeout(30):
        while not all(session.received for session in sessions):
            await asyncio.sleep(0)
    assert {len(session.received) for session in sessions} == {2}


def test_few_sessions_are_notified_at_once() -> None:
    sessions: list[Any] = [Notified() for _ in range(SESSIONS_AT_ONCE)]
    Subscriptions().lists_changed(sessions, [EntryKind.TOOL], lambda _caller, _narrowing: True)
    assert all(session.received for session in sessions)
