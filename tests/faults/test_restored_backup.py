"""A store that was put back from a backup: what it holds as waiting may have run since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.faults.matrix import executed_in
from tests.seam import Call, Gateway, Upstream, seam

from taskgate.store.sqlite.last_known import LastKnown

APPROVED = {"governance": {"rules": [{"match": "asked", "action": "approve"}]}}


async def done(call: Call) -> str:
    return "done"


def databases(gate: Gateway) -> list[Path]:
    return [path for path in gate.state.iterdir() if ".db" in path.name and not path.name.endswith((".known", ".lock"))]


async def made(caller: Any, tool: str) -> str:
    task_id: str = (await caller.call(tool, {}, task={"ttl": 600_000})).result["task"]["taskId"]
    return task_id


async def ended(caller: Any, task_id: str) -> dict[str, Any]:
    last: dict[str, Any] = (await caller.begin("tasks/result", {"taskId": task_id}).done(600)).last
    return last


@seam
async def test_a_restored_backup_runs_nothing_twice_that_may_run_once(tmp_path: Path) -> None:
    server = Upstream("2025", tools={"once": done, "read": done, "asked": done})
    config = {**APPROVED, "servers": {"far": {"tools": {"read": {"class": "read"}}}}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await server.stop()
        once, read, asked = [await made(caller, f"far__{tool}") for tool in ("once", "read", "asked")]
        await gate.stop()
        for path in databases(gate):
            shutil.copy2(path, tmp_path / path.name)
        await server.start()
        await gate.start()
        later = await gate.caller("2025")
        assert "done" in json.dumps(await ended(later, once))
        assert "done" in json.dumps(await ended(later, read))
        assert server.count("once") == 1
        await gate.stop()
        for path in databases(gate):
            path.unlink()
        for path in tmp_path.iterdir():
            shutil.copy2(path, gate.state / path.name)
        await gate.start()
        again = await gate.caller("2025")
        told = await ended(again, once)
        assert executed_in(told) == "maybe"
        assert "restored backup" in told["error"]["message"]
        assert executed_in(await ended(again, asked)) == "maybe"
        assert "done" in json.dumps(await ended(again, read))
        assert server.count("once") == 1
        assert any("older than when it was last written" in line.event for line in gate.log)
        # From here on it is a store like any other.
        await server.stop()
        new = await made(again, "far__once")
        await gate.restart()
        await server.start()
        assert "done" in json.dumps(await ended(await gate.caller("2025"), new))


@seam
async def test_a_crash_is_not_taken_for_a_restored_backup() -> None:
    server = Upstream("2025", tools={"once": done})
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await server.stop()
        task_id = await made(caller, "far__once")
        gate.crash()
        await server.start()
        await gate.start()
        assert "done" in json.dumps(await ended(await gate.caller("2025"), task_id))


@pytest.mark.parametrize("left", [b"", b"no number", b"00000000000000000007\n"])
def test_the_mark_is_ahead_only_of_a_database_that_has_less(tmp_path: Path, left: bytes) -> None:
    database = tmp_path / "taskgate.db"
    (tmp_path / "taskgate.db.known").write_bytes(left)
    mark = LastKnown(database, 7)
    assert not mark.is_ahead
    mark.committed(9)
    mark.close()
    older = LastKnown(database, 8)
    assert older.is_ahead
    older.committed(8)
    older.close()
    assert LastKnown(database, 8).is_ahead
    older = LastKnown(database, 8)
    older.start_over(8)
    assert not LastKnown(database, 8).is_ahead
