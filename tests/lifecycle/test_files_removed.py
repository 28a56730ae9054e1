"""The files of a running gateway are removed, renamed or replaced: it refuses what it cannot store, and ends within two seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, the_loop, virtual_time

from taskgate.held_folder import HeldFolder
from taskgate.lifecycle.lost_files import StateLost

END_S = 2.0


def removed(state: Path) -> None:
    shutil.rmtree(state)


def renamed(state: Path) -> None:
    state.rename(state.with_name("elsewhere"))


def removed_and_made_again(state: Path) -> None:
    shutil.rmtree(state)
    state.mkdir()


def database_removed(state: Path) -> None:
    (found,) = state.glob("*.db")
    found.unlink()


def database_replaced(state: Path) -> None:
    """As if a backup were restored under a running gateway."""
    (found,) = state.glob("*.db")
    copy = found.with_suffix(".copy")
    shutil.copy(found, copy)
    os.replace(copy, found)


def log_removed(state: Path) -> None:
    (found,) = state.glob("*.db-wal")
    found.unlink()


LOSSES = [removed, renamed, removed_and_made_again, database_removed, database_replaced, log_removed]


@pytest.mark.parametrize("lose", LOSSES)
@virtual_time
async def test_gateway_without_its_files_accepts_nothing_and_ends(lose: Callable[[Path], None]) -> None:
    server = Upstream()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        assert (await gate.http("GET", "/ready").done()).status == 200
        began = the_loop().time()
        lose(gate.state)
        refused = await caller.call("notes__echo", {}, task={"ttl": 600_000})
        error = refused.error["data"]
        assert (error["error_type"], error["executed"]) == ("store_unavailable", "no")
        assert (await gate.http("GET", "/ready").done()).status == 503
        assert isinstance(await gate.ended(), StateLost)
        assert the_loop().time() - began <= END_S
        assert server.count() == 0


@virtual_time
async def test_running_calls_are_answered_before_the_gateway_ends() -> None:
    server = Upstream()

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "done"

    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = (await caller.call("notes__slow", {}, task={"ttl": 600_000})).result["taskId"]
        plain, waiting = caller.begin_call("notes__slow"), caller.begin("tasks/result", {"taskId": task_id})
        await gate.advance(5)
        began = the_loop().time()
        shutil.rmtree(gate.state)
        found = [(await each.done()).error["data"].get("executed") for each in (plain, waiting)]
        assert found == ["maybe", "maybe"]
        assert isinstance(await gate.ended(), StateLost)
        assert the_loop().time() - began <= END_S


@virtual_time
async def test_gateway_ends_without_state_folder_also_if_its_store_is_elsewhere(tmp_path: Path) -> None:
    """It contains keys, the operator's token and the lock."""
    async with Gateway({"store": {"url": f"sqlite:///{tmp_path / 'store.db'}"}}, {"notes": Upstream()}) as gate:
        began = the_loop().time()
        shutil.rmtree(gate.state)
        assert (await gate.http("GET", "/ready").done()).status == 503
        assert isinstance(await gate.ended(), StateLost)
        assert the_loop().time() - began <= END_S


@virtual_time
async def test_another_gateway_starts_in_the_empty_place() -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        shutil.rmtree(gate.state)
        assert isinstance(await gate.ended(), StateLost)
        await gate.start()
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = (await caller.call("notes__echo", {}, task={"ttl": 600_000})).result["taskId"]
        assert "result" in (await caller.request("tasks/result", {"taskId": task_id})).messages[-1]


@virtual_time
async def test_refused_task_does_not_run_after_the_folder_has_its_name_again() -> None:
    server = Upstream()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        elsewhere = gate.state.with_name("elsewhere")
        gate.state.rename(elsewhere)
        refused = await caller.call("notes__echo", {}, task={"ttl": 600_000})
        assert refused.error["data"]["executed"] == "no"
        assert isinstance(await gate.ended(), StateLost)
        elsewhere.rename(gate.state)
        await gate.start()
        await gate.advance(60)
        assert server.count() == 0


@pytest.mark.parametrize(
    "problem", [PermissionError(), OSError(5, "Input/output error"), OSError(116, "Stale file handle")]
)
def test_inaccessible_folder_does_not_count_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: OSError
) -> None:
    """A failing file system may recover; the store reports its own failures."""
    folder = HeldFolder(tmp_path)

    def fails(_path: Any) -> Any:
        raise problem

    monkeypatch.setattr(os, "stat", fails)
    assert folder.lost() is None
    monkeypatch.undo()
    folder.close()
    folder.close()


def test_recreated_folder_is_another_one(tmp_path: Path) -> None:
    """Its inode number is not reused, because the old folder is held open."""
    place = tmp_path / "state"
    place.mkdir()
    folder = HeldFolder(place)
    assert folder.lost() is None
    place.rmdir()
    assert folder.lost() is not None
    place.mkdir()
    assert folder.lost() is not None
    folder.close()
