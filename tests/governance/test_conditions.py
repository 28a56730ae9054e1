"""Rules with conditions on a running gateway: lists, calls, approvals, the audit log, and what changes before a call is sent."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.catalog.test_omitted_tools import PLAIN, calls_of, server
from tests.virtual_time import Gateway, virtual_time
from tests.virtual_time.waiting import the_loop


def tool(name: str, **hints: bool) -> str:
    return json.dumps({"name": name, "inputSchema": {"type": "object"}, **({"annotations": hints} if hints else {})})


def configured(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**PLAIN, "governance": {"rules": list(rules)}, **more}


def token(name: str, *roles: str) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "roles": list(roles)}


async def names(caller: Any) -> set[str]:
    return {found["name"] for found in await caller.tools() if found["name"] in ("read", "drop", "pay")}


async def audit(gate: Gateway, event: str) -> list[dict[str, Any]]:
    await gate.advance(2)
    rows = (await gate.operator("GET", "/api/v1/audit")).json()["rows"]
    return [row for row in rows if row["event"] == event]


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_lists_and_calls_depend_on_the_role_of_the_caller(generation: str) -> None:
    upstream = server(tool("read"), tool("drop"), generation=generation)
    rules = [{"match": "drop", "when": {"role": "intern"}, "action": "deny"}]
    tokens = [token("ann", "intern"), token("bob", "boss")]
    async with Gateway(configured(*rules, tokens=tokens), {"a": upstream}) as gate:
        ann, bob = [await gate.caller(generation, token=name) for name in ("ann", "bob")]
        assert (await names(ann), await names(bob)) == ({"read"}, {"read", "drop"})
        assert (await ann.call("drop")).error["data"]["error_type"] == "policy_denied"
        assert (await bob.call("drop")).text == "ran drop"
        assert (await ann.call("read")).text == "ran read"
        assert calls_of(upstream, "drop") == 1
        (row,) = await audit(gate, "call_denied")
        assert (row["principal"], row["rule"]) == ("ann", "rules[0] drop")
        assert row["reason"].endswith("because role is intern")


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_a_call_is_held_by_its_argument(generation: str) -> None:
    upstream = server(tool("pay"), generation=generation)
    rules = [{"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "approve", "reason": "large sums"}]
    async with Gateway(configured(*rules), {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert (await caller.call("pay", {"amount": 5})).text == "ran pay"
        for amount in (5000, "5000"):
            waiting = caller.begin_call("pay", {"amount": amount})
            await gate.advance(60)
            assert waiting.reply is not None
        assert calls_of(upstream, "pay") == 1
        large, text = (await gate.operator("GET", "/api/approvals")).json()
        assert large["rule"] == "rules[0] pay because argument.amount > 1000: large sums"
        assert text["rule"] == "rules[0] pay because it cannot be ruled out: argument.amount > 1000: large sums"


@virtual_time
@pytest.mark.parametrize(
    ("rules", "support"),
    [
        ([{"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "approve"}], "required"),
        ([{"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "deny"}], "optional"),
        ([{"match": "pay", "when": {"client": "x*"}, "action": "deny"}], "optional"),
        ([{"match": "pay", "when": {"time": "00:00-23:59 UTC"}, "action": "deny"}], "optional"),
        (
            [{"match": "pay", "when": {"time": "00:00-23:59 UTC"}, "action": "deny"}, {"match": "*", "action": "deny"}],
            None,
        ),
    ],
)
async def test_what_depends_on_the_call_never_hides_a_tool(rules: list[dict[str, Any]], support: str | None) -> None:
    async with Gateway(configured(*rules), {"a": server(tool("pay"))}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        shown = {found["name"]: found for found in await caller.tools()}
        found = shown["pay"]["execution"]["taskSupport"] if "pay" in shown else None
        assert found == support


@virtual_time
async def test_a_tool_is_decided_by_its_risk() -> None:
    rules = [
        {"match": "*", "when": {"risk": "destructive"}, "action": "deny"},
        {"match": "*", "when": {"risk": "undeclared"}, "action": "approve"},
    ]
    own = server(tool("read", readOnlyHint=True), tool("drop", destructiveHint=True))
    other = server(tool("pay", readOnlyHint=True))
    servers = {"a": {"trust_annotations": True}, "b": {"tools": {"late": {"risk": "reads"}}}}
    async with Gateway(configured(*rules, servers=servers), {"a": own, "b": other}) as gate:
        caller = await gate.caller("2025")
        assert await names(caller) == {"read", "pay"}
        assert (await caller.call("read")).text == "ran read"
        assert (await caller.call("drop")).error["data"]["error_type"] == "policy_denied"
        waiting = caller.begin_call("pay")
        await gate.advance(60)
        assert waiting.reply is not None
        assert calls_of(other, "pay") == 0, "the hint of a server that is not trusted does not lower the risk"
        await gate.reload(configured(*rules, servers={**servers, "b": {"tools": {"pay": {"risk": "reads"}}}}))
        assert (await caller.call("pay")).text == "ran pay"


NIGHT = {"match": "drop", "when": {"time": "outside 08:00-18:00 UTC"}, "action": "approve"}


def set_clock(hour: int, minute: int) -> None:
    tomorrow = (the_loop().wall() // 86_400 + 1) * 86_400
    the_loop().set_wall(tomorrow + hour * 3600 + minute * 60)


def set_clock_to_noon() -> None:
    the_loop().set_wall(the_loop().wall() // 86_400 * 86_400 + 12 * 3600)


async def hold(gate: Gateway) -> tuple[Any, str, str]:
    """A call that waits for approval: its caller, its task and the approval."""
    caller = await gate.caller("2025", capabilities={"tasks": {}})
    made = await caller.request("tools/call", {"name": "drop", "arguments": {}, "task": {"ttl": 3_600_000}})
    (row,) = (await gate.operator("GET", "/api/approvals")).json()
    return caller, made.result["task"]["taskId"], row["id"]


@virtual_time
async def test_an_approved_call_runs_if_the_rules_would_now_forward_it() -> None:
    upstream = server(tool("drop"))
    async with Gateway(configured(NIGHT), {"a": upstream}) as gate:
        set_clock(7, 59)
        caller, task_id, approval = await hold(gate)
        await gate.advance(120)
        await gate.operator("POST", f"/api/approvals/{approval}/approve", {})
        assert (await caller.request("tasks/result", {"taskId": task_id})).result["content"][0]["text"] == "ran drop"
        assert calls_of(upstream, "drop") == 1


@virtual_time
async def test_an_approved_call_is_stopped_by_a_fact_that_changed_and_the_audit_log_names_it() -> None:
    upstream = server(tool("drop"))
    lunch = {"match": "drop", "when": {"time": "12:00-13:00 UTC"}, "action": "deny"}
    async with Gateway(configured(lunch, {"match": "drop", "action": "approve"}), {"a": upstream}) as gate:
        set_clock(11, 59)
        caller, task_id, approval = await hold(gate)
        await gate.operator("POST", f"/api/approvals/{approval}/approve", {})
        await gate.advance(120)
        reply = await caller.request("tasks/result", {"taskId": task_id})
        assert reply.error["data"]["error_type"] == "policy_drift"
        assert "12:00" not in reply.error["message"]
        assert calls_of(upstream, "drop") == 0
        (entry,) = await audit(gate, "approval_invalid")
        assert "because time is 12:00-13:00 UTC" in entry["reason"]
        shown = (await gate.operator("GET", f"/api/approvals/{approval}")).json()
        assert (shown["state"], "time is 12:00-13:00 UTC" in shown["reason"]) == ("invalid", True)


@virtual_time
async def test_the_time_is_that_of_each_call() -> None:
    upstream = server(tool("drop"))
    rules = [{"match": "drop", "when": {"time": "12:00-13:00 UTC"}, "action": "deny"}]
    async with Gateway(configured(*rules), {"a": upstream}) as gate:
        set_clock(12, 30)
        caller = await gate.caller("2025")
        assert (await caller.call("drop")).error["data"]["error_type"] == "policy_denied"
        await gate.advance(1800)
        assert (await caller.call("drop")).text == "ran drop"


@virtual_time
async def test_a_person_states_the_risk_of_a_tool_until_its_definition_changes() -> None:
    definitions = [tool("pay")]
    upstream = server(*definitions)
    rules = [{"match": "*", "when": {"risk": ">= undeclared"}, "action": "deny"}]
    async with Gateway(configured(*rules, pins="warn", limits={"list_max_age": "5s"}), {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert await names(caller) == set()
        body = {"server": "a", "tool": "pay", "risk": "writes"}
        wrong = [{**body, "risk": "small"}, {**body, "digest": "sha256:0"}, {**body, "tool": "other"}, {"tool": "pay"}]
        statuses = [(await gate.operator("POST", "/api/v1/pins/risk", each)).status for each in wrong]
        assert statuses == [400, 409, 409, 400]
        assert await names(caller) == set()
        assert (await gate.operator("POST", "/api/v1/pins/risk", body)).json()["risk"] == "writes"
        assert await names(caller) == {"pay"}
        assert (await caller.call("pay")).text == "ran pay"
        (row,) = await audit(gate, "tool_risk_stated")
        assert (row["name"], row["decision"]) == ("pay", "writes")
        await gate.restart()
        caller = await gate.caller("2025")
        assert await names(caller) == {"pay"}, "it is stored"


@virtual_time
async def test_a_stated_risk_does_not_survive_a_change_of_the_definition() -> None:
    first, second = tool("pay"), tool("pay", openWorldHint=True)
    upstream, listed = server(first), [first]

    async def lists(call: Any) -> dict[str, Any]:
        body = f'{{"jsonrpc":"2.0","id":{call.message["id"]},"result":{{"tools":[{listed[0]}]}}}}'
        call.reply.send(200, body.encode(), {"content-type": "application/json"})
        return {}

    upstream.on("tools/list", lists)
    rules = [{"match": "*", "when": {"risk": ">= undeclared"}, "action": "deny"}]
    async with Gateway(configured(*rules, pins="warn", limits={"list_max_age": "5s"}), {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await gate.operator("POST", "/api/v1/pins/risk", {"server": "a", "tool": "pay", "risk": "reads"})
        assert await names(caller) == {"pay"}
        listed[0] = second
        await gate.advance(30)
        await caller.tools()
        await gate.advance(30)
        assert await names(caller) == set()
        assert (await caller.call("pay")).error["data"]["error_type"] == "policy_denied"


@virtual_time
async def test_an_approved_prompt_is_stopped_by_a_fact_that_changed_and_its_approval_ends() -> None:
    upstream = server(tool("read"))

    async def prompts(call: Any) -> dict[str, Any]:
        return {"prompts": [{"name": "ask"}]}

    async def prompt(call: Any) -> dict[str, Any]:
        return {"messages": []}

    upstream.capabilities["prompts"] = {}
    upstream.on("prompts/list", prompts)
    upstream.on("prompts/get", prompt)
    lunch = {"match": "prompt:ask", "when": {"time": "12:00-13:00 UTC"}, "action": "deny"}
    rules: list[dict[str, Any]] = [lunch, {"match": "prompt:ask", "action": "approve"}]
    async with Gateway(configured(*rules), {"a": upstream}) as gate:
        set_clock(11, 59)
        caller = await gate.caller("2025")
        waiting = caller.begin("prompts/get", {"name": "ask"})
        await gate.advance(1)
        (row,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.advance(40)
        set_clock_to_noon()
        await gate.operator("POST", f"/api/approvals/{row['id']}/approve", {})
        assert (await waiting.done()).error["data"]["error_type"] == "policy_drift"
        assert "prompts/get" not in {each.get("method") for each in upstream.received}
        shown = (await gate.operator("GET", f"/api/approvals/{row['id']}")).json()
        assert (shown["state"], "12:00-13:00" in shown["reason"]) == ("invalid", True)


@virtual_time
@pytest.mark.parametrize("stated", [False, True])
async def test_an_unlisted_name_has_at_least_the_risk_of_the_tools_that_it_looks_like(stated: bool) -> None:
    hints = {} if stated else {"destructiveHint": True}
    upstream = server(tool("read"), tool("drop", **hints), tool("pay"))
    deny = {"match": "*", "when": {"risk": "destructive"}, "action": "deny"}
    traits = {"drop": {"risk": "destructive"}} if stated else {}
    servers = {"a": {"tools": {**traits, "PAY": {"risk": "reads"}, "pay": {"risk": "destructive"}}}}
    async with Gateway(configured(deny, servers=servers), {"a": upstream}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.tools()
        for name in ("drop", "DROP", "d rop", "pay", "PAY"):
            error_type = (await caller.call(name)).error["data"]["error_type"]
            assert error_type == "policy_denied", name
            assert calls_of(upstream, name) == 0
        assert (await caller.call("unlisted")).text == "ran unlisted"


@virtual_time
async def test_the_recheck_uses_the_risk_of_the_tools_that_an_unlisted_name_looks_like() -> None:
    upstream = server(tool("drop"))
    hold_all = {"match": "*", "action": "approve"}
    deny = {"match": "*", "when": {"risk": "destructive"}, "action": "deny"}
    async with Gateway(configured(hold_all), {"a": upstream}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        made = await caller.request("tools/call", {"name": "DROP", "arguments": {}, "task": {"ttl": 3_600_000}})
        task_id = made.result["task"]["taskId"]
        (row,) = (await gate.operator("GET", "/api/approvals")).json()
        servers = {"a": {"tools": {"drop": {"risk": "destructive"}}}}
        await gate.reload(configured(deny, hold_all, servers=servers))
        await gate.operator("POST", f"/api/approvals/{row['id']}/approve", {})
        error = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert error["data"]["error_type"] == "policy_drift"
        assert calls_of(upstream, "DROP") == 0
