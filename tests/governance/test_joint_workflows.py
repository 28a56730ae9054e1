"""A rule and a server's own record hold a call for different workflows: people of both must approve."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.catalog.test_omitted_tools import PLAIN, calls_of, definition, server
from tests.virtual_time import Gateway, virtual_time


def approver(name: str, role: str) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"id": name, "sha256": digest, "roles": ["approver", role], "may_call": False}


CONFIG: dict[str, Any] = {
    **PLAIN,
    "tokens": [
        approver("fay", "finance"),
        approver("olga", "ops"),
        {"id": "ann", "sha256": hashlib.sha256(b"ann").hexdigest()},
    ],
    "approval": {
        "money": {"approvers": ["role:finance"], "redact_fields": ["iban"]},
        "ops": {"approvers": ["role:ops"], "redact_fields": ["note"]},
        "board": {"approvers": ["role:finance"]},
    },
    "governance": {"rules": [{"match": "pay", "action": "approve", "approval": "money"}]},
    "servers": {"bank": {"approval_policy": {"default": "approve", "approval": "ops"}}},
}
ARGUMENTS = {"iban": "DE1", "note": "for you", "amount": 5}


async def decide(gate: Gateway, who: str, approval: str, verdict: str) -> Any:
    headers = {"authorization": f"Bearer {who}"}
    return await gate.http("POST", f"/api/approvals/{approval}/{verdict}", {}, headers).done()


async def hold(gate: Gateway) -> tuple[Any, str, str]:
    caller = await gate.caller("2025", token="ann", capabilities={"tasks": {}})
    made = await caller.request("tools/call", {"name": "pay", "arguments": ARGUMENTS, "task": {"ttl": 3_600_000}})
    (row,) = (await gate.operator("GET", "/api/approvals")).json()
    return caller, made.result["task"]["taskId"], row["id"]


@virtual_time
async def test_people_of_both_workflows_must_approve() -> None:
    upstream = server(definition("pay"))
    async with Gateway(CONFIG, {"bank": upstream}) as gate:
        caller, task_id, approval = await hold(gate)
        shown = (await gate.operator("GET", f"/api/approvals/{approval}")).json()
        assert (shown["workflow"], shown["approvals_needed"]) == ("money+ops", 2)
        assert set(shown["hidden"]) == {"iban", "note"}
        assert "DE1" not in str(shown)
        assert "for you" not in str(shown)
        assert (await decide(gate, "fay", approval, "approve")).status == 200
        await gate.advance(5)
        assert calls_of(upstream, "pay") == 0
        assert (await decide(gate, "fay", approval, "approve")).status != 200, "one vote counts once"
        assert (await decide(gate, "olga", approval, "approve")).status == 200
        assert (await caller.request("tasks/result", {"taskId": task_id})).text == "ran pay"
        assert calls_of(upstream, "pay") == 1


@virtual_time
@pytest.mark.parametrize(("workflow", "runs"), [("ops", True), ("board", False)])
async def test_approval_of_both_survives_a_restart_and_ends_if_others_must_approve(workflow: str, runs: bool) -> None:
    upstream = server(definition("pay"))
    async with Gateway(CONFIG, {"bank": upstream}) as gate:
        _, task_id, approval = await hold(gate)
        assert (await decide(gate, "fay", approval, "approve")).status == 200
        await gate.restart()
        rule = {"match": "pay", "action": "approve", "approval": workflow}
        await gate.reload({**CONFIG, "governance": {"rules": [rule]}})
        assert (await decide(gate, "olga", approval, "approve")).status == 200
        caller = await gate.caller("2025", token="ann", capabilities={"tasks": {}})
        reply = await caller.request("tasks/result", {"taskId": task_id})
        if runs:
            assert reply.text == "ran pay", "what is required now was approved too"
        else:
            assert reply.error["data"]["error_type"] == "policy_drift", "other approvers are required now"
        assert calls_of(upstream, "pay") == int(runs)
