"""The operator sees, follows and cancels the tasks of all callers; a caller only its own."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, virtual_time

TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}
TOKENS: dict[str, Any] = {
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789abcdef".encode()).hexdigest()}
        for name in ("agent", "other")
    ],
    "approval": {"ops": {"redact_fields": ["pin"]}},
    "governance": {"rules": [{"match": "guarded", "action": "approve", "approval": "ops"}]},
}


def bank_server() -> Upstream:
    bank = Upstream("2025")

    @bank.tool("pay")
    async def pay(call: Call) -> str:
        await call.sleep(100)
        return "paid"

    return bank


async def begun(caller: Any) -> str:
    reply = await caller.call("bank__pay", {"amount": 5, "pin": "1234"}, task={"ttl": 60000})
    task_id: str = reply.result["task"]["taskId"]
    return task_id


@virtual_time
async def test_the_operator_lists_shows_and_cancels_a_callers_task() -> None:
    bank = bank_server()
    async with Gateway(TOKENS, {"bank": bank}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        task_id = await begun(caller)
        await gate.advance(1)
        (row,) = (await gate.operator("GET", "/api/v1/tasks?state=open")).json()["tasks"]
        assert (row["id"], row["principal"], row["scope"], row["state"]) == (task_id, "agent", "default", "running")
        shown = (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).json()
        assert (shown["arguments"], shown["hidden"]) == ({"amount": 5, "pin": "[hidden]"}, ["pin"])
        ended = (await gate.operator("POST", f"/api/v1/tasks/{task_id}/cancel", {"reason": "too dear"})).json()
        assert (ended["state"], "operator: too dear" in ended["message"]) == ("cancelled", True)
        seen = await caller.request("tasks/get", {"taskId": task_id})
        assert seen.result["status"] == "cancelled"
        again = await gate.operator("POST", f"/api/v1/tasks/{task_id}/cancel", {})
        assert again.status == 409
        assert (await gate.operator("GET", "/api/v1/tasks?state=open")).json()["tasks"] == []
        assert len((await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]) == 1


@virtual_time
async def test_operator_waits_for_the_result_of_a_callers_task() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        path = f"/api/v1/tasks/{await begun(caller)}/result"
        await gate.advance(1)
        row = (await gate.operator("GET", path)).json()
        assert (row["ended"], row["state"], "result" in row) == (False, "running", False)
        own = {"authorization": "Bearer agent-token-0123456789abcdef"}
        waiting = gate.http("GET", f"{path}?wait=600", headers=own)
        await gate.advance(25)
        assert (await waiting.done()).json()["ended"] is False
        await gate.advance(60)
        waiting = gate.http("GET", f"{path}?wait=20", headers=own)
        await gate.advance(16)
        ended = (await waiting.done()).json()
        assert (ended["ended"], ended["result"]["content"][0]["text"]) == (True, "paid")
        assert (await gate.operator("GET", path)).json()["result"] == ended["result"]
        other = {"authorization": "Bearer other-token-0123456789abcdef"}
        assert (await gate.http("GET", path, headers=other).done()).status == 404
        assert (await gate.operator("GET", f"{path}?wait=soon")).status == 400


@virtual_time
async def test_result_of_a_cancelled_task_is_an_error_and_a_look_starts_nothing() -> None:
    bank = bank_server()
    bank.tool("guarded", bank._tools["pay"].handler)
    async with Gateway(TOKENS, {"bank": bank}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        reply = await caller.call("bank__guarded", {}, task={"ttl": 60000})
        path = f"/api/v1/tasks/{reply.result['task']['taskId']}"
        await gate.advance(60)
        (row,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})
        assert (await gate.operator("GET", f"{path}/result")).json()["state"] == "approved"
        await gate.advance(1)
        assert bank.count("guarded") == 0
        await gate.operator("POST", f"{path}/cancel", {"reason": "too dear"})
        assert (await gate.operator("GET", f"{path}/result")).json()["result"]["isError"] is True


@virtual_time
async def test_operator_who_asks_for_the_result_of_an_own_task_starts_it() -> None:
    bank = bank_server()
    bank.tool("guarded", bank._tools["pay"].handler)
    config = {**TOKENS, "approval": {"ops": {"channels": ["inbox"], "self_approval": True}}}
    async with Gateway(config, {"bank": bank}) as gate:
        caller = await gate.caller("2025", token=gate.operator_token, capabilities=TASKS)
        reply = await caller.call("bank__guarded", {}, task={"ttl": 600_000})
        path = f"/api/v1/tasks/{reply.result['task']['taskId']}/result"
        await gate.advance(60)
        (row,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})
        await gate.advance(1)
        assert bank.count("guarded") == 0
        await gate.operator("GET", path)
        await gate.advance(1)
        assert bank.count("guarded") == 1


@virtual_time
async def test_invalid_requests_get_an_error_and_change_nothing() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        task_id = await begun(caller)
        await gate.advance(1)
        for method, path, body, status in (
            ("GET", "/api/v1/tasks?state=sleeping", None, 400),
            ("GET", "/api/v1/tasks?limit=0", None, 400),
            ("GET", "/api/v1/tasks?text=%00", None, 400),
            ("GET", "/api/v1/tasks/%00", None, 400),
            ("GET", "/api/v1/tasks/tg_nothing", None, 404),
            ("POST", f"/api/v1/tasks/{task_id}/cancel", {"reason": 7}, 400),
            ("POST", f"/api/v1/tasks/{task_id}/cancel", {"force": True}, 400),
            ("POST", "/api/v1/tasks/tg_01ARZ3NDEKTSV4RRFFQ69G5FAV/cancel", {}, 404),
            ("POST", f"/api/v1/tasks/{task_id}/restart", {}, 404),
        ):
            reply = await gate.operator(method, path, body)
            assert (reply.status, bool(reply.json()["error"])) == (status, True), path
        assert (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).json()["state"] == "running"


@virtual_time
async def test_a_caller_follows_its_own_task_and_no_other() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        task_id = await begun(caller)
        await gate.advance(1)
        path = f"/api/v1/tasks/{task_id}/events"
        mine = gate.http("GET", path, headers={"authorization": "Bearer agent-token-0123456789abcdef"})
        for unauthorized in ("Bearer nonsense-0123456789abcdef", None):
            headers = {"authorization": unauthorized} if unauthorized else {}
            refused = await gate.http("GET", path, headers=headers).done()
            assert refused.status in (401, 403)
            listed = await gate.http("GET", "/api/v1/tasks", headers=headers).done()
            assert listed.status in (401, 403)
        for token, mine_too in (("other", False), ("agent", True)):
            headers = {"authorization": f"Bearer {token}-token-0123456789abcdef"}
            listed = (await gate.http("GET", "/api/v1/tasks", headers=headers).done()).json()["tasks"]
            assert [row["id"] for row in listed] == ([task_id] if mine_too else [])
            shown = await gate.http("GET", f"/api/v1/tasks/{task_id}", headers=headers).done()
            assert shown.status == (200 if mine_too else 404)
        foreign = {"authorization": "Bearer other-token-0123456789abcdef"}
        assert (await gate.http("GET", path, headers=foreign).done()).status == 404
        assert (await gate.http("POST", f"/api/v1/tasks/{task_id}/cancel", {}, foreign).done()).status == 404
        await gate.advance(101)
        body = (await mine.done()).body
        assert body.count(b"event: task_status") >= 2
        assert b'"status":"completed"' in body
        assert b":ping" in body


@virtual_time
async def test_an_anonymous_callers_unguessable_id_opens_its_events() -> None:
    async with Gateway({}, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        task_id = await begun(caller)
        await gate.advance(1)
        mine = gate.http("GET", f"/api/v1/tasks/{task_id}/events")
        await gate.advance(101)
        assert b'"status":"completed"' in (await mine.done()).body
        assert (await gate.http("GET", f"/api/v1/tasks/{task_id}").done()).status == 401
        cancelled = await gate.http("POST", f"/api/v1/tasks/{task_id}/cancel", {}).done()
        assert cancelled.status == 401
