"""Slack and the webhook behind a running gateway: announced once, decided from outside, and resumed after a restart."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.channels.receiver_double import Receiver, receiver
from tests.channels.slack_double import APP_TOKEN, BOT_TOKEN, SlackDouble, slack
from tests.governance.approval_setup import Setup, Stateful, eventually, running_setup

from taskgate.channels.webhook_signature import key_of, signed_headers

pytestmark = pytest.mark.timeout(90)
SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()
DEADLINE_S = 120.0


def slack_workflow(double: SlackDouble, **more: Any) -> dict[str, Any]:
    channel = {
        "type": "slack",
        "channel": "#approvals",
        "bot_token": BOT_TOKEN,
        "app_token": APP_TOKEN,
        "approvers": {"U0ANN": "ann"},
        "api_url": double.url,
        **more,
    }
    return {"ops": {"channels": ["inbox", channel]}}


def hook_workflow(there: Receiver) -> dict[str, Any]:
    return {"ops": {"channels": ["inbox", {"type": "webhook", "url": there.url, "secret": SECRET}]}}


async def held(setup: Setup) -> tuple[Stateful, str]:
    """A task that waits for people, and its caller."""
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", {"path": "/tmp/x"}, task={"ttl": 600_000})
    return caller, made["result"]["taskId"]


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not there():
            await asyncio.sleep(0.02)


def press(double: SlackDouble, action: str) -> dict[str, Any]:
    """What Slack sends when Ann presses a button of the first card."""
    text = json.dumps(next(iter(double.messages.values()))["blocks"])
    blocks = json.loads(json.loads(text)) if text.startswith('"') else json.loads(text)
    buttons = {e["action_id"]: e["value"] for b in blocks if b["type"] == "actions" for e in b["elements"]}
    return {
        "type": "block_actions",
        "user": {"id": "U0ANN"},
        "channel": {"id": "C0REAL"},
        "trigger_id": "t.1",
        "actions": [{"action_id": action, "value": buttons[action]}],
    }


async def test_an_approval_by_slack_button_runs_the_call_and_updates_the_card(tmp_path: Path) -> None:
    async with slack() as double, running_setup(tmp_path, approval=slack_workflow(double)) as setup:
        caller, task_id = await held(setup)
        await double.wait_for("chat.postMessage")
        await double.press(await double.connected(), "e1", press(double, "taskgate_approve"))
        result = await caller.ask("tasks/result", taskId=task_id)
        assert "did delete_it" in json.dumps(result)
        await until(lambda: "taskgate_approve" not in json.dumps(double.messages["1800000000.000001"]["blocks"]))
        assert double.count_of("chat.postMessage") == 1


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_after_a_restart_no_second_card_is_posted_and_the_old_card_is_updated(tmp_path: Path, end: str) -> None:
    async with slack() as double, running_setup(tmp_path, approval=slack_workflow(double)) as setup:
        _, task_id = await held(setup)
        await double.wait_for("chat.postMessage")
        await double.connected()
        await receipts_kept(setup, 1)
        await (setup.gateway.stop() if end == "stop" else setup.gateway.kill())
        await setup.gateway.start()
        await double.press(await double.connected(), "e2", press(double, "taskgate_approve"))
        caller = await setup.stateful({"tasks": {}})
        assert "did delete_it" in json.dumps(await caller.ask("tasks/result", taskId=task_id))
        card = double.messages["1800000000.000001"]
        await until(lambda: "taskgate_approve" not in json.dumps(card["blocks"]))
        assert double.count_of("chat.postMessage") == 1
        assert len(setup.sent()) == 1
        await receipts_kept(setup, 0)


async def test_reactions_on_a_card_count_after_a_restart(tmp_path: Path) -> None:
    async with slack() as double:
        workflow = slack_workflow(double, mode="reactions", poll_interval="100ms", app_token=None)
        async with running_setup(tmp_path, approval=workflow) as setup:
            _, task_id = await held(setup)
            await double.wait_for("chat.postMessage")
            await receipts_kept(setup, 1)
            await setup.gateway.restart()
            double.messages["1800000000.000001"]["reactions"] = [{"name": "+1", "users": ["U0ANN"]}]
            caller = await setup.stateful({"tasks": {}})
            assert "did delete_it" in json.dumps(await caller.ask("tasks/result", taskId=task_id))
            assert double.count_of("chat.postMessage") == 1


async def test_an_approval_that_ended_while_slack_was_unavailable_is_shown_after_the_restart(tmp_path: Path) -> None:
    async with slack() as double, running_setup(tmp_path, approval=slack_workflow(double)) as setup:
        await held(setup)
        await double.wait_for("chat.postMessage")
        await receipts_kept(setup, 1)
        double.script["chat.update"] = ["internal_error"] * 20
        (row,) = await setup.open_approvals()
        await setup.deny(row["id"], reason="no")
        await double.wait_for("chat.update")
        await setup.gateway.stop()
        double.script.clear()
        await setup.gateway.start()
        card = double.messages["1800000000.000001"]
        await until(lambda: "Denied" in json.dumps(card["blocks"]))
        assert double.count_of("chat.postMessage") == 1
        await receipts_kept(setup, 0)


async def receipts_kept(setup: Setup, count: int) -> None:
    """Wait until this many are in the store, read while the gateway has it open."""

    async def look() -> bool | None:
        with sqlite3.connect(f"file:{setup.gateway.state / 'taskgate.db'}?mode=ro", uri=True) as store:
            found = store.execute("select count(*) from channel_receipts").fetchone()[0]
        return True if found == count else None

    await eventually(look)


async def test_a_signed_callback_decides_and_after_a_restart_only_the_outcome_is_sent(tmp_path: Path) -> None:
    async with receiver(key_of(SECRET)) as there, running_setup(tmp_path, approval=hook_workflow(there)) as setup:
        _, task_id = await held(setup)
        await until(lambda: len(there.got) == 1)
        asked = there.got[0]
        assert asked["type"] == "approval.requested"
        await receipts_kept(setup, 1)
        await setup.gateway.restart()
        payload = {
            "approval_id": asked["approval"]["id"],
            "verdict": "approve",
            "approver": "ann",
            "arguments_digest": asked["approval"]["arguments_digest"],
        }
        body = json.dumps(payload).encode()
        async with httpx2.AsyncClient(timeout=120) as http:
            forged = signed_headers(key_of("another secret"), "m0", int(time.time()), body)
            assert (await http.post(asked["callback_url"], content=body, headers=forged)).status_code == 401
            signed = signed_headers(key_of(SECRET), "m1", int(time.time()), body)
            reply = await http.post(asked["callback_url"], content=body, headers=signed)
            assert reply.status_code == 200, reply.text
        caller = await setup.stateful({"tasks": {}})
        assert "did delete_it" in json.dumps(await caller.ask("tasks/result", taskId=task_id))
        await until(lambda: len(there.got) >= 2)
        await receipts_kept(setup, 0)
        kinds = [message["type"] for message in there.got]
        assert kinds.count("approval.requested") == 1
        assert set(kinds[1:]) == {"approval.updated"}
