"""The call that is sent must equal the approved one: any difference between approval and sending stops the call."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.governance.approval_setup import (
    RULES,
    TOOLS,
    Setup,
    Stateful,
    config,
    eventually,
    people,
    running_setup,
    tool,
)

pytestmark = pytest.mark.virtual_time

CALL = {"path": "/tmp/x"}


async def approved(setup: Setup, name: str = "s__delete_it", token: str | None = None) -> tuple[Stateful, str]:
    """A call that is approved and not yet sent, and its caller."""
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call(name, CALL, task={"ttl": 600000})
    (row,) = await setup.open_approvals()
    assert (await setup.approve(row["id"], token=token)).status_code == 200
    return caller, made["result"]["taskId"]


async def ends(setup: Setup, caller: Stateful, task_id: str) -> dict[str, Any]:
    """The error a stopped call ends with; nothing went upstream."""
    reply = await caller.ask("tasks/result", taskId=task_id)
    assert setup.sent() == []
    assert reply["error"]["data"]["executed"] == "no"
    return dict(reply["error"])


async def reloaded(setup: Setup, folder: Path, **more: Any) -> None:
    before = setup.gateway.log.count("configuration reloaded")
    await setup.gateway.reload(config(folder, **more))

    async def done() -> bool | None:
        return setup.gateway.log.count("configuration reloaded") > before or None

    await eventually(done)


async def test_a_definition_that_changed_after_the_approval_is_not_called(tmp_path: Path) -> None:
    """Bad input: definition changed between approval and dispatch."""
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup)
        setup.describe(
            [tool("delete_it", "Now does something else.") if t["name"] == "delete_it" else t for t in TOOLS]
        )
        error = await ends(setup, caller, task_id)
        assert error["data"]["error_type"] == "request_drift"
        assert error["code"] == -32012


async def test_a_policy_that_denies_now_stops_an_approved_call(tmp_path: Path) -> None:
    """Bad input: policy changed between approval and dispatch."""
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup)
        await reloaded(setup, tmp_path, governance={"rules": [{"match": "delete_*", "action": "deny"}]})
        error = await ends(setup, caller, task_id)
        assert error["data"]["error_type"] == "policy_drift"
        assert error["code"] == -32011


async def test_a_scope_that_shrank_stops_an_approved_call(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup)
        await reloaded(setup, tmp_path, scopes={"default": {"default_servers": ["*"], "tool_denylist": ["delete_it"]}})
        error = await ends(setup, caller, task_id)
        assert error["data"]["error_type"] == "policy_drift"
        assert setup.sent() == []


async def test_a_policy_that_now_requires_other_approvers_stops_an_approved_call(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup)
        rules = [{"match": "delete_*", "action": "approve", "approval": "money"}]
        workflows = {"ops": {"channels": ["inbox"]}, "money": {"channels": ["inbox"]}}
        await reloaded(setup, tmp_path, governance={"rules": rules}, approval=workflows)
        assert (await ends(setup, caller, task_id))["data"]["error_type"] == "policy_drift"


async def test_an_approver_who_lost_the_role_no_longer_counts(tmp_path: Path) -> None:
    """Bad input: approver role changed between approval and dispatch."""
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup, token="ann-token")
        await reloaded(setup, tmp_path, tokens=people("bob"))
        assert (await ends(setup, caller, task_id))["data"]["error_type"] == "policy_drift"


async def test_an_irrelevant_reload_does_not_stop_an_approved_call(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        caller, task_id = await approved(setup)
        await reloaded(setup, tmp_path, governance={"rules": [*RULES, {"match": "other_*", "action": "deny"}]})
        reply = await caller.ask("tasks/result", taskId=task_id)
        assert "result" in reply
        assert len(setup.sent()) == 1


async def test_arguments_that_changed_in_the_store_are_not_sent(tmp_path: Path) -> None:
    """Bad input: arguments changed between approval and dispatch."""
    async with running_setup(tmp_path) as setup:
        _, task_id = await approved(setup)
        await setup.gateway.stop()
        with sqlite3.connect(setup.gateway.state / "taskgate.db") as database:
            (table,) = [
                name
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                if {"task_id", "arguments", "params_rest"}
                <= {c[1] for c in database.execute(f"PRAGMA table_info({name})")}
            ]
            changed = database.execute(f"UPDATE {table} SET arguments = ?", (b'{"path":"/"}',))
            assert changed.rowcount == 1
        await setup.gateway.start()
        caller = await setup.stateful({"tasks": {}})
        assert (await ends(setup, caller, task_id))["data"]["error_type"] == "request_drift"


async def test_open_approvals_of_a_changed_definition_are_withdrawn(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        caller = await setup.stateful({"tasks": {}})
        made = await caller.call("s__delete_it", CALL, task={"ttl": 600000})
        (row,) = await setup.open_approvals()
        setup.describe([tool("delete_it", "Poisoned.") if t["name"] == "delete_it" else t for t in TOOLS])
        second = await caller.call("s__delete_two", {}, task={"ttl": 600000})
        other = next(r for r in await setup.open_approvals(2) if r["name"] == "delete_two")
        await setup.approve(other["id"])
        # Sending the other call reads the server's list again, and so finds the change.
        assert "result" in await caller.ask("tasks/result", taskId=second["result"]["taskId"])

        async def over() -> dict[str, Any] | None:
            detail = (await setup.api("GET", f"/api/approvals/{row['id']}")).json()
            return detail if detail["state"] != "open" else None

        assert (await eventually(over))["state"] == "invalid"
        reply = await caller.ask("tasks/result", taskId=made["result"]["taskId"])
        assert reply["error"]["data"]["error_type"] == "request_drift"
        assert [sent["name"] for sent in setup.sent()] == ["delete_two"]


async def test_a_grant_approves_calls_until_it_is_revoked(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        caller = await setup.stateful({"tasks": {}})
        made = await caller.call("s__delete_it", CALL, task={"ttl": 600000})
        (row,) = await setup.open_approvals()
        given = await setup.approve(row["id"], token="ann-token", grant={"minutes": 5})
        grant = given.json()["grant"]
        await caller.ask("tasks/result", taskId=made["result"]["taskId"])
        again = await caller.call("s__delete_it", {"path": "/other"}, task={"ttl": 600000})
        assert "result" in await caller.ask("tasks/result", taskId=again["result"]["taskId"])
        assert len(setup.sent()) == 2
        assert (await setup.api("GET", "/api/approvals")).json() == []
        assert [g["id"] for g in (await setup.api("GET", "/api/grants")).json()] == [grant["id"]]
        await setup.api("POST", f"/api/grants/{grant['id']}/revoke", {})
        await caller.call("s__delete_it", CALL, task={"ttl": 600000})
        assert len(await setup.open_approvals()) == 1
        too_long = await setup.approve((await setup.open_approvals())[0]["id"], grant={"minutes": 600})
        assert too_long.status_code == 400
