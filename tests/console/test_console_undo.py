"""An approval is taken back as long as its call waits for its caller, and never once it runs."""

from __future__ import annotations

from typing import Any

from tests.console.test_console_inbox import AGENT, HELD, held
from tests.console.test_console_pages import Person, form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS
from tests.console.test_console_task_page import shop
from tests.virtual_time import Gateway, virtual_time

ON_DEMAND: dict[str, Any] = {**HELD, "tasks": {"execute_on": "demand"}}


async def approve(gate: Gateway, who: Person) -> tuple[dict[str, Any], str]:
    """Approve the one open call from the inbox; its row, and where the browser is led."""
    (row,) = (await gate.operator("GET", "/api/v1/approvals")).json()
    values = {"back": "inbox", "digest": row["arguments_digest"]}
    done = await who.post(f"/approvals/{row['id']}/approve", values, form_token(await who.text("/inbox")))
    assert done.status == 303
    return row, done.headers["location"]


@virtual_time
async def test_approval_is_taken_back_while_the_call_waits_for_its_caller() -> None:
    server = shop()
    async with Gateway(ON_DEMAND, {"shop": server}) as gate:
        await held(gate, "wipe", 1, disk="a")
        boss, ann = await operator(gate), await known(gate, "ann")
        row, where = await approve(gate, boss)
        page = await boss.text(where)
        action = f"/approvals/{row['id']}/recall"
        assert f'action="{action}"' in page
        assert action not in await ann.text(where), "only the person who approved is offered it"
        assert (await ann.post(action, {}, form_token(await ann.text("/inbox")))).status in (403, 409)
        assert (await boss.post(action, {})).status == 403, "without the form of a page"
        assert (await boss.post(action, {}, form_token(page))).headers["location"] == "/inbox?done=recalled"
        shown = (await gate.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
        assert (shown["state"], shown["votes"]) == ("open", [])
        task = (await gate.operator("GET", f"/api/v1/tasks/{row['task_id']}")).json()
        assert task["state"] == "awaiting_approval"
        entries = (await gate.operator("GET", "/api/v1/audit?event=approval_recalled")).json()["rows"]
        assert [(entry["approval_id"], entry["reason"]) for entry in entries] == [(row["id"], "by operator")]
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        await caller.request("tasks/get", {"taskId": row["task_id"]})
        await gate.advance(60)
        assert server.count("wipe") == 0, "a recalled call does not run"
        await approve(gate, boss)
        await caller.request("tasks/get", {"taskId": row["task_id"]})
        await gate.advance(60)
        assert server.count("wipe") == 1


@virtual_time
async def test_approval_of_a_call_that_runs_cannot_be_taken_back() -> None:
    server = shop()
    async with Gateway({**HELD, "tasks": {"execute_on": "approval"}}, {"shop": server}) as gate:
        await held(gate, "wipe", 1, disk="a")
        boss = await operator(gate)
        row, where = await approve(gate, boss)
        assert where == "/inbox", "it runs at once: nothing is offered, and nothing waits for an undo"
        await gate.advance(1)
        assert server.count("wipe") == 1
        late = await gate.operator("POST", f"/api/v1/approvals/{row['id']}/recall", {})
        assert late.status == 409
        assert late.json()["state"] == "used"
        assert (await gate.operator("POST", "/api/v1/approvals/ap_gone/recall", {})).status == 404


@virtual_time
async def test_approval_without_time_left_cannot_be_taken_back() -> None:
    config = {**ON_DEMAND, "approval": {"default": {"timeout": "100s", "unsafe_on_timeout": "approve"}}}
    async with Gateway({**config, "tokens": TOKENS["tokens"]}, {"shop": shop()}) as gate:
        await held(gate, "wipe", 1, disk="a")
        boss = await operator(gate)
        row, where = await approve(gate, boss)
        assert "/recall" in await boss.text(where)
        await gate.advance(120)
        assert "/recall" not in await boss.text(where)
        assert (await gate.operator("POST", f"/api/v1/approvals/{row['id']}/recall", {})).status == 409
