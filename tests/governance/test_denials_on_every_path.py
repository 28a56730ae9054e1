"""With plain names a server gets names it never listed. None of them evades a denial, a pin or a list by its spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.governance.approval_setup import config, eventually, running_setup
from tests.governance.test_pins_in_force import changed, list_again, seen_as_changed

pytestmark = pytest.mark.virtual_time

PLAIN = {"default": {"default_servers": ["*"], "names": "plain"}}
RULES = [
    {"match": "drop_*", "action": "deny"},
    {"match": "resource:note://host/secret*", "action": "deny"},
    {"match": "delete_*", "action": "approve", "approval": "ops"},
]
GOVERNANCE = {"rules": RULES}


def error_type(reply: dict[str, Any]) -> str | None:
    return reply.get("error", {}).get("data", {}).get("error_type")


async def test_no_unchecked_member_reaches_a_server_in_another_case(tmp_path: Path) -> None:
    async with running_setup(tmp_path, governance=GOVERNANCE) as setup:
        caller = await setup.stateful({"tasks": {}})
        members: tuple[dict[str, Any], ...] = (
            {"Name": "drop_it"},
            {"argument\u017f": {}},
            {"task": {"ttl": 60000}, "NAME": "drop_it"},
        )
        for member in members:
            refused = await caller.ask("tools/call", name="s__harmless", arguments={}, **member)
            assert error_type(refused) == "invalid_params"
        ref = {"type": "ref/prompt", "name": "hello", "Name": "drop_prompt"}
        refused = await caller.ask("completion/complete", ref=ref, argument={"name": "a", "value": ""})
        assert error_type(refused) == "invalid_params"
        for method in ("resources/read", "resources/subscribe"):
            refused = await caller.ask(method, uri="note://host/public", URI="note://host/secret")
            assert error_type(refused) == "invalid_params"
        assert setup.sent() == []


async def test_a_lookalike_of_a_denied_name_is_denied_to_every_caller(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=PLAIN, governance=GOVERNANCE) as setup:
        caller, aware = await setup.stateful(), await setup.stateful({"tasks": {}})
        for name in ("drop_it", "DROP_X", " drop_x", "drop＿x", "drоp_x", "drop_x\u200b"):
            assert error_type(await caller.call(name)) == "policy_denied"
            assert error_type(await aware.call(name, task={"ttl": 60000})) == "policy_denied"
            ref = {"type": "ref/tool", "name": name}
            refused = await caller.ask("completion/complete", ref=ref, argument={"name": "a", "value": ""})
            assert error_type(refused) == "unknown_reference"
        assert setup.sent() == []
        assert "did harmless" in (await caller.call("harmless"))["result"]["content"][0]["text"]


async def test_a_quarantined_tool_does_not_run_under_its_name_nor_one_like_it(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=PLAIN, pins="enforce", governance=GOVERNANCE) as setup:
        caller = await setup.stateful({"tasks": {}})
        assert "did read_it" in str(await caller.call("read_it"))
        setup.describe(changed("Something else."))
        await list_again(setup)
        await seen_as_changed(setup)
        before = len(setup.sent())
        for name in ("read_it", "Read_It", "read＿it"):
            assert error_type(await caller.call(name)) == "unknown_tool"
            assert error_type(await caller.call(name, task={"ttl": 60000})) == "unknown_tool"
        assert len(setup.sent()) == before


async def test_a_denied_resource_is_denied_on_every_path(tmp_path: Path) -> None:
    (tmp_path / "CAPABILITIES").write_text(json.dumps({"completions": {}, "resources": {"subscribe": True}}))
    async with running_setup(tmp_path, scopes=PLAIN, governance=GOVERNANCE) as setup:
        caller = await setup.stateful()
        for path in ("host/secret", "HOST/secret", "host/./secret", "host/%73ecret", "host/Secret", "host//secret"):
            uri = f"note://{path}"
            assert error_type(await caller.ask("resources/read", uri=uri)) == "unknown_resource"
            assert error_type(await caller.ask("resources/subscribe", uri=uri)) == "unknown_resource"
            ref = {"type": "ref/resource", "uri": uri}
            asked = await caller.ask("completion/complete", ref=ref, argument={"name": "a", "value": ""})
            assert error_type(asked) == "unknown_reference"
        assert setup.sent("resources/read") == []
        assert "the text" in str(await caller.ask("resources/read", uri="note://host/open"))


async def test_a_waiting_task_is_rechecked_for_lookalikes(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=PLAIN, governance=GOVERNANCE) as setup:
        caller = await setup.stateful({"tasks": {}})
        made = await caller.call("Delete_that", task={"ttl": 60000})
        (row,) = await setup.open_approvals()
        rules = [{"match": "delete_that", "action": "deny"}, *RULES]
        await setup.gateway.reload(config(tmp_path, scopes=PLAIN, governance={"rules": rules}))

        async def in_force() -> bool | None:
            return "reloaded" in setup.gateway.log or None

        await eventually(in_force)
        await setup.approve(row["id"])
        ended = await caller.ask("tasks/result", taskId=made["result"]["taskId"])
        assert error_type(ended) == "policy_drift"
        assert setup.sent() == []
