"""Approvals outside the inbox: by an elicitation of the caller, and by a signed webhook."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from tests.channels.receiver_double import receiver
from tests.governance.approval_setup import DEADLINE, Stateful, eventually, people, running_setup

from taskgate import clock

pytestmark = pytest.mark.virtual_time

SELF = {"channels": ["inbox", {"type": "elicitation", "mode": "form"}], "self_approval": True}
FORM: dict[str, Any] = {"elicitation": {"form": {}}}


async def answered(caller: Stateful, name: str, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return await answered_in(caller, answer, "tools/call", name=name, arguments={"path": "/x"})


async def answered_in(
    caller: Stateful, answer: dict[str, Any], method: str, **params: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request whose question is answered on the way: the question, and the reply."""
    question: dict[str, Any] = {}
    async for message in caller.stream(method, **params):
        if message.get("method") == "elicitation/create":
            question = message["params"]
            await caller.respond(message["id"], answer)
        elif "id" in message and "method" not in message:
            return question, message
    raise AssertionError("the stream ended without a reply")


async def test_the_user_of_the_caller_approves_by_form_if_the_workflow_allows_it(tmp_path: Path) -> None:
    async with running_setup(tmp_path, approval={"ops": SELF}) as setup:
        caller = await setup.stateful(FORM)
        yes = {"action": "accept", "content": {"decision": "approve"}}
        question, reply = await asyncio.wait_for(answered(caller, "s__delete_it", yes), DEADLINE)
        assert '"path": "/x"' in question["message"]
        assert question["requestedSchema"]["required"] == ["decision"]
        assert reply["result"]["content"][0]["text"].startswith("did delete_it")
        no = {"action": "accept", "content": {"decision": "deny", "reason": "On second thought"}}
        _, reply = await asyncio.wait_for(answered(caller, "s__delete_it", no), DEADLINE)
        assert "On second thought" in reply["error"]["message"]
        assert len(setup.sent()) == 1
        aware = await setup.stateful({**FORM, "tasks": {}})
        made = await aware.call("s__delete_it", {"path": "/x"}, task={"ttl": 60000})
        waiting = answered_in(aware, yes, "tasks/result", taskId=made["result"]["taskId"])
        question, reply = await asyncio.wait_for(waiting, DEADLINE)
        assert question["mode"] == "form"
        assert reply["result"]["content"][0]["text"].startswith("did delete_it")


async def test_no_form_is_shown_to_a_caller_that_may_not_approve(tmp_path: Path) -> None:
    careful = {**SELF, "self_approval": False}
    async with running_setup(tmp_path, approval={"ops": careful}) as setup:
        caller = await setup.stateful(FORM)
        waiting = asyncio.create_task(
            answered(caller, "s__delete_it", {"action": "accept", "content": {"decision": "approve"}})
        )
        (row,) = await setup.open_approvals()
        await setup.deny(row["id"])
        question, reply = await asyncio.wait_for(waiting, DEADLINE)
        assert question == {}
        assert reply["error"]["data"]["error_type"] == "approval_rejected"


async def test_a_stateless_caller_answers_the_form_in_its_next_round(tmp_path: Path) -> None:
    async with running_setup(tmp_path, approval={"ops": SELF}) as setup:
        caller = setup.stateless(FORM)
        asked = (await caller.call("s__delete_it", {"path": "/x"}))["result"]
        assert asked["inputRequests"]["approval"]["params"]["mode"] == "form"
        answers = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
        reply = await caller.call(
            "s__delete_it", {"path": "/x"}, requestState=asked["requestState"], inputResponses=answers
        )
        assert reply["result"]["content"][0]["text"].startswith("did delete_it")
        asked = (await caller.call("s__delete_it", {"path": "/y"}))["result"]
        reply = await caller.call(
            "s__delete_it",
            {"path": "/y"},
            requestState=asked["requestState"],
            inputResponses={"approval": {"action": "decline"}},
        )
        assert "error" in reply or reply["result"].get("isError")
        assert len(setup.sent()) == 1


def signed(secret: bytes, body: bytes) -> dict[str, str]:
    now = str(int(clock.wall()))
    mac = hmac.new(secret, f"msg_1.{now}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(mac).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": now, "webhook-signature": signature}


async def test_a_webhook_gets_the_request_decides_by_callback_and_gets_the_outcome(tmp_path: Path) -> None:
    secret = b"quite secret"
    async with receiver(secret) as hook:
        channel = {"type": "webhook", "url": hook.url, "secret": secret.decode()}
        workflow = {"channels": ["inbox", channel]}
        async with running_setup(tmp_path, approval={"ops": workflow}, tokens=people("ann")) as setup:
            caller = await setup.stateful()
            waiting = asyncio.create_task(caller.call("s__delete_it", {"path": "/x"}))

            async def announced() -> dict[str, Any] | None:
                return hook.got[0] if hook.got else None

            card = await eventually(announced)
            assert card["type"] == "approval.requested"
            decision = {
                "approval_id": card["approval"]["id"],
                "verdict": "deny",
                "approver": "ann",
                "arguments_digest": card["approval"]["arguments_digest"],
                "reason": "Not from here",
            }
            body = json.dumps(decision).encode()
            forged = await setup.http.post(card["callback_url"], content=body, headers=signed(b"other", body))
            assert forged.status_code == 401
            reply = await setup.http.post(card["callback_url"], content=body, headers=signed(secret, body))
            assert reply.status_code == 200
            again = await setup.http.post(card["callback_url"], content=body, headers=signed(secret, body))
            assert again.status_code == 409
            assert "Not from here" in (await asyncio.wait_for(waiting, DEADLINE))["error"]["message"]

            async def updated() -> dict[str, Any] | None:
                return hook.got[1] if len(hook.got) > 1 else None

            assert (await eventually(updated))["approval"]["state"] == "denied"
            await setup.deny((await _held_again(setup))["id"])


async def test_an_open_approval_is_not_announced_again_after_a_restart(tmp_path: Path) -> None:
    secret = b"quite secret"
    async with receiver(secret) as hook:
        workflow = {"channels": ["inbox", {"type": "webhook", "url": hook.url, "secret": secret.decode()}]}
        async with running_setup(tmp_path, approval={"ops": workflow}) as setup:
            row = await _held_again(setup)

            async def updated() -> bool | None:
                return len(hook.got) >= 1 or None

            await eventually(updated)
            await setup.gateway.restart()
            (still,) = await setup.open_approvals()
            await asyncio.sleep(1.5)
            assert [card["type"] for card in hook.got] == ["approval.requested"]
            assert {card["approval"]["id"] for card in hook.got} == {row["id"], still["id"]}


async def _held_again(setup: Any) -> dict[str, Any]:
    caller = await setup.stateful({"tasks": {}})
    await caller.call("s__delete_two", {}, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    return dict(row)
