"""The inbox and the page to try tools on: decided, answered and called by forms, with the next step shown beforehand."""

from __future__ import annotations

import html
import re
from typing import Any

from tests.console.test_console_pages import HOSTILE, form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

HELD: dict[str, Any] = {
    **TOKENS,
    "governance": {"rules": [{"match": "wipe", "action": "approve"}, {"match": "look", "action": "approve"}]},
    "limits": {"pending_approvals_per_caller": 20},
}
AGENT = "agent-token-0123456789abcdef"


def shop() -> Upstream:
    shop = Upstream("2025")

    @shop.tool("wipe", annotations={"destructiveHint": True})
    async def wipe(call: Call) -> str:
        return "wiped"

    @shop.tool("look", annotations={"readOnlyHint": True})
    async def look(call: Call) -> str:
        return "seen"

    @shop.tool("wait")
    async def wait(call: Call) -> str:
        await call.sleep(100)
        return "waited"

    @shop.tool("ask")
    async def ask(call: Call) -> str:
        schema = {
            "type": "object",
            "properties": {
                "size": {"type": "string", "enum": ["small", "large"], "title": HOSTILE},
                "count": {"type": "integer"},
                "gift": {"type": "boolean"},
                **{f"more{number}": {"type": "string"} for number in range(5_000)},
            },
            "required": ["size", "count"],
        }
        answer = await call.ask("elicitation/create", {"message": HOSTILE, "requestedSchema": schema})
        return str(answer)

    return shop


async def held(gate: Gateway, tool: str, times: int, **arguments: Any) -> None:
    caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
    for number in range(times):
        # A key of its own keeps a call from joining an equal one.
        key = {"taskgate/idempotencyKey": f"{tool} {arguments} {number}"}
        await caller.call(f"shop__{tool}", arguments, task={"ttl": 600000}, _meta=key)
    await gate.advance(1)


@virtual_time
async def test_equal_calls_are_decided_together_but_never_destructive_ones() -> None:
    server = shop()
    async with Gateway(HELD, {"shop": server}) as gate:
        await held(gate, "wipe", 2, disk="a")
        await held(gate, "look", 3, at="a")
        await held(gate, "look", 1, at="b")
        boss = await operator(gate)
        page = await boss.text("/inbox")
        assert page.count("data-card") == 4
        assert page.startswith("<!doctype html>")
        assert "<title>(6) Inbox" in page
        assert 'data-count="3"' in page
        (ids,) = re.findall(r'name="ids" value="([^"]+)"', page)
        digest = re.search(r'name="digest" value="([^"]+)"><button class="approve" name="verdict"', page)
        assert digest is not None
        token = form_token(page)
        wiping = [
            row["id"] for row in (await gate.operator("GET", "/api/v1/approvals")).json() if row["name"] == "wipe"
        ]
        forged = {"ids": ",".join(wiping), "digest": digest[1], "verdict": "approve"}
        assert (await boss.post("/inbox/together", forged, token)).status == 409
        mixed = {"ids": f"{ids},{wiping[0]}", "digest": digest[1], "verdict": "approve"}
        assert (await boss.post("/inbox/together", {**mixed, "ids": ids}, "forged")).status == 403
        assert (await boss.post("/inbox/together", mixed, token)).status == 409
        rows = (await gate.operator("GET", "/api/v1/inbox")).json()["approvals"]
        assert sorted(row["name"] for row in rows) == ["look", "wipe", "wipe"]
        agent = await known(gate, "agent")
        assert "data-card" not in await agent.text("/inbox")
        again = await boss.post("/inbox/together", {**mixed, "ids": ids}, token)
        assert again.status == 409


@virtual_time
async def test_a_card_states_what_an_approval_causes() -> None:
    async with Gateway({**HELD, "tasks": {"execute_on": "demand"}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = await caller.call("shop__wipe", {}, task={"ttl": 600000})
        boss = await operator(gate)
        page = await boss.text("/inbox")
        assert 'data-starts-on-approval="false"' in page
        assert "not polled yet" in page
        await caller.request("tasks/get", {"taskId": made.result["task"]["taskId"]})
        await gate.advance(181)
        assert "last polled 3 min ago" in await boss.text("/inbox")
    async with Gateway({**HELD, "tasks": {"execute_on": "approval"}}, {"shop": shop()}) as gate:
        await held(gate, "wipe", 1)
        boss = await operator(gate)
        page = await boss.text("/inbox")
        assert 'data-starts-on-approval="true"' in page
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        values = {"back": "inbox", "digest": approval["arguments_digest"]}
        done = await boss.post(f"/approvals/{approval['id']}/approve", values, form_token(page))
        assert done.headers["location"] == "/inbox"
        await gate.advance(1)
        (task,) = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
        assert task["state"] == "completed"


@virtual_time
async def test_a_question_is_a_real_form_and_the_first_answer_wins() -> None:
    async with Gateway(TOKENS, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = await caller.call("shop__ask", {}, task={"ttl": 600000})
        await gate.advance(1)
        boss, other = await operator(gate), await known(gate, "other")
        page = await boss.text("/inbox")
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert len(page) < 60_000
        assert "more fields are not shown" in page
        (question,) = re.findall(r'action="(/inbox/questions/[^"]+)"', page)
        token = form_token(page)
        assert "data-card" not in await other.text("/inbox")
        unauthorized = await other.post(
            question, {"f.size": "small", "f.count": "1"}, form_token(await other.text("/inbox"))
        )
        assert unauthorized.status == 409
        wrong = await boss.post(question, {"f.size": "small", "f.count": "many"}, token)
        assert (wrong.status, "count must be a whole number" in wrong.body.decode()) == (400, True)
        unfit = await boss.post(question, {"f.size": "huge", "f.count": "1"}, token)
        assert (unfit.status, "must be one of" in unfit.body.decode()) == (400, True)
        good = {"f.size": "large", "f.count": "2", "f.gift": "true", "action": "accept"}
        assert (await boss.post(question, good, token)).headers["location"] == "/inbox?done=answered"
        assert (await boss.post(question, good, token)).status == 409
        await gate.advance(1)
        shown = html.unescape(await boss.text(f"/tasks/{made.result['task']['taskId']}"))
        assert "'size': 'large', 'count': 2, 'gift': True" in shown.replace('\\"', '"')
        assert "Question answered" in shown


@virtual_time
async def test_a_tool_is_tried_as_the_current_user_and_a_slow_or_held_call_becomes_a_task() -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        boss, agent = await operator(gate), await known(gate, "agent")
        page = await boss.text("/try")
        assert "shop__wait" in page
        assert "shop__wait" in await agent.text("/try")
        token = form_token(await boss.text("/try?tool=shop__look"))
        slow = await boss.post("/try", {"tool": "shop__wait", "scope": "default"}, token)
        assert slow.headers["location"].startswith("/tasks/tg_")
        shown = await boss.text(slow.headers["location"])
        assert ("operator" in shown, "running" in shown) == (True, True)
        waits = await boss.post("/try", {"tool": "shop__wipe", "scope": "default", "whole-json": '{"a": 1}'}, token)
        assert waits.headers["location"].startswith("/tasks/tg_")
        assert "shop" in await boss.text("/inbox")
        for bad, status in (({"whole-json": "{"}, 400), ({"tool": "shop__gone"}, 400)):
            values = {"tool": "shop__look", "scope": "default", **bad}
            assert (await boss.post("/try", values, token)).status == status
        reply = await gate.operator(
            "POST", "/api/v1/tools/call", {"tool": "shop__ask", "arguments": {}, "scope": "default"}
        )
        assert reply.json()["task_id"].startswith("tg_")
        assert (await gate.operator("POST", "/api/v1/tools/call", {"tool": "x", "scope": "none"})).status == 404


@virtual_time
async def test_approval_page_states_whom_a_grant_would_cover() -> None:
    anonymous = {"governance": HELD["governance"]}
    for config, covered in (
        (HELD, "this caller, this tool"),
        (anonymous, "every anonymous caller in this scope, this tool"),
    ):
        async with Gateway(config, {"shop": shop()}) as gate:
            caller = await gate.caller("2025", token=AGENT if "tokens" in config else None, capabilities=TASKS)
            await caller.call("shop__wipe", {}, task={"ttl": 600000})
            (approval,) = (await gate.operator("GET", "/api/approvals")).json()
            boss = await operator(gate)
            assert covered in await boss.text(f"/approvals/{approval['id']}")
