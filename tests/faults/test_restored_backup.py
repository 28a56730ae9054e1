"""A store that was put back from a backup: what it holds as waiting may have run since."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.faults.matrix import executed_in
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.governance.approval import State
from taskgate.core.governance.grants import Grant
from taskgate.store.operations.approvals import FindHeld
from taskgate.store.operations.grants import AddGrant, FindGrants
from taskgate.store.operations.identity_records import (
    CONSOLE_SESSION,
    IdentityRecord,
    IdentityRecords,
    KeepIdentityRecord,
)
from taskgate.store.operations.restored import AcceptRestored
from taskgate.store.sqlite import last_known
from taskgate.store.sqlite.last_known import LastKnown, StoreMark
from taskgate.store.sqlite.store import open_store

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


@pytest.mark.parametrize("mark", ["kept", "missing"])
@virtual_time
async def test_a_restored_backup_runs_nothing_twice_that_may_run_once(tmp_path: Path, mark: str) -> None:
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
        if mark == "missing":
            for path in gate.state.glob("*.known"):
                path.unlink()
        await gate.start()
        again = await gate.caller("2025")
        reply = await ended(again, once)
        assert executed_in(reply) == "maybe"
        assert "restored backup" in reply["error"]["message"]
        assert executed_in(await ended(again, asked)) == "maybe"
        assert "done" in json.dumps(await ended(again, read))
        assert server.count("once") == 1
        assert any("restored from a backup" in line.event for line in gate.log)
        # From here on it is a store like any other.
        await server.stop()
        new = await made(again, "far__once")
        await gate.restart()
        await server.start()
        assert "done" in json.dumps(await ended(await gate.caller("2025"), new))


@virtual_time
async def test_a_crash_is_not_treated_as_a_restored_backup() -> None:
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


@virtual_time
async def test_restored_store_ends_grants_approvals_and_logins() -> None:
    """What was revoked or denied after the backup is not in it; here all of it is still allowed."""
    server = Upstream("2025", tools={"asked": done})
    tools = {"asked": {"class": "read"}}
    token = {"id": "agent", "sha256": hashlib.sha256(b"agent-token-0001").hexdigest()}
    config = {**APPROVED, "servers": {"far": {"tools": tools}}, "tokens": [token]}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025", token="agent-token-0001")
        await caller.tools()
        waiting = await made(caller, "far__asked")
        (card,) = (await gate.operator("GET", "/api/approvals")).json()
        store = gate.life.app.store
        session = IdentityRecord(CONSOLE_SESSION, "digest", "operator", store.now_ms() + 3_600_000, b"{}")
        await store.do(KeepIdentityRecord(session))
        await store.do(AddGrant(a_grant(store.now_ms())))
        await gate.stop()
        for path in gate.state.glob("*.known"):
            path.unlink()
        await gate.start()
        store = gate.life.app.store
        assert await store.ask(FindGrants()) == ()
        assert await store.ask(IdentityRecords(CONSOLE_SESSION)) == ()
        held = await store.ask(FindHeld(card["id"]))
        assert held is not None
        assert held.approval.state is State.CANCELLED
        again = await gate.caller("2025", token="agent-token-0001")
        assert executed_in(await ended(again, waiting)) == "maybe"
        assert server.count("asked") == 0
        (review,) = [line for line in gate.log if "tokens" in line.facts]
        assert review.facts["tokens"] == ["agent"]
        await gate.restart()
        assert await gate.life.app.store.ask(IdentityRecords(CONSOLE_SESSION)) == ()
        assert not gate.life.app.store.state.restore.is_restored


def a_grant(now_ms: int) -> Grant:
    return Grant(
        id="gr_1",
        workflow="default",
        server="far",
        tool="asked",
        scope="default",
        principal=None,
        arguments_digest=None,
        definition_digest="sha256:d",
        granted_at_ms=now_ms,
        until_ms=now_ms + 3_600_000,
        granted_by=("ann",),
        approval_id="ap_1",
    )


@pytest.mark.parametrize(
    ("left", "is_ahead"),
    [
        (None, True),
        (b"", True),
        (b"no number", True),
        (b"00000000000000000007\n", False),
        (b"00000000000000000008\n", True),
        (b"00000000000000000007 00000000000000000003\n", False),
        (b"00000000000000000007 00000000000000000004\n", True),
    ],
)
def test_the_store_mark_is_newer_than_a_restored_database(tmp_path: Path, left: bytes | None, is_ahead: bool) -> None:
    database = tmp_path / "taskgate.db"
    if left is not None:
        (tmp_path / "taskgate.db.known").write_bytes(left)
    assert LastKnown(database, StoreMark(7, 3), expected=True).is_ahead is is_ahead


def test_a_new_or_upgraded_store_needs_no_mark(tmp_path: Path) -> None:
    assert not LastKnown(tmp_path / "taskgate.db", StoreMark(7, 3), expected=False).is_ahead


async def test_the_store_mark_is_synced_with_its_folder_before_the_store_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bytes]] = []

    def noted(folder: Path) -> None:
        synced.append((folder, (tmp_path / "taskgate.db.known").read_bytes()))

    monkeypatch.setattr(last_known, "sync_folder", noted)
    store = open_store(tmp_path / "taskgate.db")
    try:
        fence = store.ownership.fence
        assert [(folder, int(mark.split()[1])) for folder, mark in synced] == [(tmp_path, fence)]
    finally:
        await store.close()


async def test_a_restored_store_is_handled_by_the_next_start_after_an_aborted_one(tmp_path: Path) -> None:
    path = tmp_path / "taskgate.db"
    await open_store(path).close()
    (tmp_path / "taskgate.db.known").unlink()
    for _ in range(3):
        store = open_store(path)
        assert store.state.restore.is_restored
        await store.close()
    store = open_store(path)
    await store.do(AcceptRestored())
    await store.close()
    store = open_store(path)
    assert not store.state.restore.is_restored
    await store.close()
