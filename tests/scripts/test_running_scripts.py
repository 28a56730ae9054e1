"""Scripts as callers run them: calls, results, failures, questions, limits, cancellation."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

ON = {"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}
CLASSES = {"servers": {"shop": {"tools": {"read": {"class": "read"}, "buy": {"class": "once"}}}}}


def shop(*, slow_s: float = 0.0) -> Upstream:
    upstream = Upstream("2025")

    @upstream.tool("read")
    async def read(call: Call) -> str:
        return f"read {call.arguments.get('n')}"

    @upstream.tool("buy")
    async def buy(call: Call) -> str:
        await call.sleep(slow_s)
        return f"bought {call.arguments.get('n')}"

    return upstream


def structured(result: dict[str, Any]) -> dict[str, Any]:
    return result["structuredContent"]


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_script_returns_the_value_of_its_last_line(generation: str) -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller(generation)
        code = """
first = await shop.read(n=1)
both = await asyncio.gather(shop.read(n=2), shop.buy(n=3))
print("done with", len(both))
{"first": first, "both": both, "given": inputs["x"]}
"""
        reply = await caller.call("run_script", {"code": code, "inputs": {"x": 7}})
        content = structured(reply.result)
        assert content["result"] == {"first": "read 1", "both": ["read 2", "bought 3"], "given": 7}
        assert content["printed"] == "done with 2\n"
        assert content["calls"] == {"executed": 3, "not_executed": 0, "unknown": 0}
        assert (store.count("read"), store.count("buy")) == (2, 1)


APPROVE_BUY = {"governance": {"rules": [{"match": "buy", "action": "approve"}]}}
DENY_BUY = {"governance": {"rules": [{"match": "buy", "action": "deny"}]}}
CAUGHT = """
try:
    told = await shop.buy(n=1)
except Exception as e:
    told = [tool_error(e).type, tool_error(e).executed]
told
"""


async def started(gate: Gateway, caller: Any, code: str, **more: Any) -> str:
    """Begin a script as a task of a 2025 caller."""
    params = {"name": "run_script", "arguments": {"code": code, **more}, "task": {"ttl": 3_600_000}}
    reply = await caller.request("tools/call", params)
    return str(reply.result["task"]["taskId"])


async def ended(caller: Any, task: str) -> dict[str, Any]:
    reply = await caller.request("tasks/result", {"taskId": task})
    return reply.result


async def approve_all(gate: Gateway) -> int:
    waiting = (await gate.operator("GET", "/api/approvals")).json()
    for one in waiting:
        await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {})
    return len(waiting)


@virtual_time
async def test_denied_call_raises_in_the_script() -> None:
    store = shop()
    async with Gateway({**ON, **DENY_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call(
            "run_script", {"code": CAUGHT.replace("shop.buy(n=1)", "call_tool('shop__buy', n=1)")}
        )
        assert structured(reply.result)["result"][1] == "no"
        assert store.count("buy") == 0


@virtual_time
async def test_call_that_needs_approval_waits_and_runs_at_once_when_approved() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)")
        await gate.advance(300)
        assert store.count("buy") == 0
        shown = (await caller.request("tasks/get", {"taskId": task})).result
        assert "shop__buy (line 1)" in shown["statusMessage"]
        assert await approve_all(gate) == 1
        assert structured(await ended(caller, task))["result"] == "bought 1"
        assert store.count("buy") == 1


@virtual_time
async def test_status_names_only_calls_that_still_wait_for_approval() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)\nawait sleep(60)")
        await gate.advance(10)
        assert await approve_all(gate) == 1
        await gate.advance(10)
        shown = (await caller.request("tasks/get", {"taskId": task})).result
        assert shown["status"] == "working"
        assert "shop__buy" not in shown["statusMessage"]


@virtual_time
async def test_waiting_for_approval_costs_no_execution_time() -> None:
    store = shop()
    config = {
        **ON,
        "limits": {"script_time": "5s"},
        "approval": {"ops": {"channels": ["inbox"], "timeout": "2h"}},
        "governance": {"rules": [{"match": "buy", "action": "approve", "approval": "ops"}]},
    }
    async with Gateway(config, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await sleep(3000)\nawait shop.buy(n=1)")
        await gate.advance(3100)
        await gate.advance(3000)
        assert await approve_all(gate) == 1
        assert structured(await ended(await gate.caller("2025"), task))["result"] == "bought 1"


@virtual_time
async def test_script_that_runs_too_long_ends_and_its_call_is_cancelled() -> None:
    store = shop(slow_s=3600)
    async with Gateway({**ON, "limits": {"script_time": "30s"}}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)")
        result = await ended(caller, task)
        assert result["isError"] is True
        content = structured(result)
        assert (content["error"]["error_type"], content["error"]["exception"]) == ("script_limit", "too_long")
        assert content["error"]["executed"] == "maybe"
        assert [call["tool"] for call in content["calls"]["unknown"]] == ["shop__buy"]


@virtual_time
async def test_execution_time_is_counted_over_restarts() -> None:
    store = shop(slow_s=20)
    async with Gateway({**ON, "limits": {"script_time": "50s"}}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        code = "await shop.buy(n=1)\nawait shop.buy(n=2)\nawait sleep(300)\nawait shop.buy(n=3)"
        task = await started(gate, caller, code)
        await gate.advance(100)
        gate.crash()
        await gate.start()
        result = structured(await ended(await gate.caller("2025"), task))
        assert (result["error"]["error_type"], result["error"]["exception"]) == ("script_limit", "too_long")


@virtual_time
async def test_script_that_makes_too_many_calls_ends() -> None:
    store = shop()
    async with Gateway({**ON, "limits": {"script_calls": 5}}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        code = "for _ in range(20):\n    try:\n        await shop.read(n=1)\n    except Exception:\n        pass"
        reply = await caller.call("run_script", {"code": code})
        assert structured(reply.result)["error"]["exception"] == "too_many_calls"
        assert store.count("read") == 5


@virtual_time
async def test_failed_script_reports_what_was_executed() -> None:
    store = shop()
    async with Gateway({**ON, **DENY_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("run_script", {"code": "await shop.read(n=1)\nraise ValueError('no')"})
        content = structured(reply.result)
        assert reply.result["isError"] is True
        assert [call["line"] for call in content["calls"]["executed"]] == [1]
        assert (content["error"]["error_type"], content["error"]["executed"]) == ("script_failed", "yes")


@virtual_time
async def test_failed_script_reports_which_outcomes_it_received() -> None:
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = "async def read():\n    await shop.read(n=1)\n    raise ValueError\nawait asyncio.gather(read(), shop.buy(n=2))"
        task = await started(gate, caller, code)
        calls = structured(await ended(caller, task))["calls"]
        assert [call["delivered"] for call in calls["executed"]] == [True]
        assert [call["delivered"] for call in calls["not_executed"]] == [False]
        found = (await gate.operator("GET", f"/api/v1/tasks/{task}")).json()["script_calls"]["calls"]
        assert {call["tool"]: call["received"] for call in found} == {"shop__read": True, "shop__buy": False}


@virtual_time
async def test_step_without_new_calls_is_not_stored() -> None:
    store = shop()

    @store.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(call.arguments["n"])
        return "slow"

    classes = {"servers": {"shop": {"tools": {"slow": {"class": "read"}}}}}
    async with Gateway({**ON, **classes}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        code = "x = await asyncio.gather(shop.slow(n=1), shop.slow(n=5), shop.slow(n=9))\nawait sleep(60)\nx"
        task = await started(gate, caller, code)
        await gate.advance(7)
        found = (await gate.operator("GET", f"/api/v1/tasks/{task}")).json()["script_calls"]
        assert (found["steps"], [call["received"] for call in found["calls"]]) == (1, [False] * 3)
        gate.crash()
        await gate.start()
        caller = await gate.caller("2025")
        assert structured(await ended(caller, task))["result"] == ["slow"] * 3
        found = (await gate.operator("GET", f"/api/v1/tasks/{task}")).json()["script_calls"]
        assert (found["steps"], [call["received"] for call in found["calls"]]) == (2, [True] * 3)


@virtual_time
async def test_question_that_expired_is_not_asked_again_after_a_restart() -> None:
    async with Gateway({**ON, "limits": {"script_question_timeout": "1h"}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = """async def asked():
    try:
        return await ask("Which?")
    except Exception as e:
        return tool_error(e).type
(await asyncio.gather(asked(), sleep(4000)))[0]"""
        task = await started(gate, caller, code)
        await gate.advance(3700)
        gate.crash()
        await gate.start()
        await gate.advance(400)
        caller = await gate.caller("2025")
        state = (await caller.request("tasks/get", {"taskId": task})).result
        assert state["status"] == "completed"
        assert structured(await ended(caller, task))["result"] == "input_missing"


@virtual_time
async def test_question_of_a_script_waits_longer_than_one_of_a_server() -> None:
    async with Gateway({**ON, "limits": {"question_timeout": "1m"}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await ask('Which?')")
        await gate.advance(120)
        [waiting] = (await caller.call_json("get_elicitations"))["elicitations"]
        answer = {"request_id": waiting["request_id"], "action": "accept", "content": {"answer": "this one"}}
        await caller.call("respond_to_elicitation", answer)
        assert structured(await ended(caller, task))["result"] == "this one"


@virtual_time
async def test_question_of_a_script_waits_as_long_on_a_stream() -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", capabilities={"elicitation": {"form": {}}})
        asked: list[dict[str, Any]] = []
        caller.answers["elicitation/create"] = asked.append
        task = await started(gate, caller, "await ask('Which colour?')")
        waiting = caller.begin("tasks/result", {"taskId": task})
        await gate.advance(3600)
        assert len(asked) == 1
        [question] = caller.asked
        answer = {"action": "accept", "content": {"answer": "blue"}}
        await caller.post({"jsonrpc": "2.0", "id": question["id"], "result": answer}).done()
        assert structured((await waiting.done()).result)["result"] == "blue"


@virtual_time
async def test_cancelled_script_cancels_its_calls() -> None:
    store = shop(slow_s=3600)
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await asyncio.gather(shop.buy(n=1), shop.buy(n=2))")
        await gate.advance(10)
        assert len((await gate.operator("GET", "/api/approvals")).json()) == 2
        cancelled = await caller.request("tasks/cancel", {"taskId": task})
        assert cancelled.result["status"] == "cancelled"
        await gate.advance(5)
        assert (await gate.operator("GET", "/api/approvals")).json() == []
        assert store.count("buy") == 0


@virtual_time
async def test_ask_reaches_the_caller() -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        answers = {"elicitation/create": {"action": "accept", "content": {"answer": "blue"}}}
        caller = await gate.caller("2025", capabilities={"elicitation": {}}, answers=answers)
        reply = await caller.call("run_script", {"code": "await ask('Which colour?')"})
        assert structured(reply.result)["result"] == "blue"


@virtual_time
async def test_scope_without_scripts_has_no_script_tools() -> None:
    async with Gateway({}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        assert "run_script" not in [tool["name"] for tool in await caller.tools()]
        reply = await caller.call("run_script", {"code": "1"})
        assert reply.error["data"]["error_type"] == "unknown_tool"


@virtual_time
async def test_script_cannot_start_scripts() -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = CAUGHT.replace("shop.buy(n=1)", "call_tool('run_script', code='1')")
        assert structured((await caller.call("run_script", {"code": code})).result)["result"] == ["not_allowed", "no"]


@virtual_time
async def test_calls_of_scripts_are_not_in_the_callers_list() -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.read(n=1)")
        await ended(caller, task)
        listed = await caller.request("tasks/list", {})
        assert [one["taskId"] for one in listed.result["tasks"]] == [task]


@virtual_time
async def test_approver_of_run_script_decides_before_it_runs() -> None:
    store = shop()
    rules = {"governance": {"rules": [{"match": "taskgate:run_script", "action": "approve"}]}}
    async with Gateway({**ON, **rules}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)")
        await gate.advance(5)
        assert store.count("buy") == 0
        assert await approve_all(gate) == 1
        assert structured(await ended(caller, task))["result"] == "bought 1"


@virtual_time
async def test_name_of_a_script_tool_is_reserved_only_in_scopes_with_scripts() -> None:
    imitation = Upstream("2025")

    @imitation.tool("run_script")
    async def run_script(call: Call) -> str:
        return "not the gateway"

    scope = {"default_servers": ["*"], "names": "plain"}
    async with Gateway({"scopes": {"default": scope}}, {"imitation": imitation}) as gate:
        assert (await (await gate.caller("2025")).call("run_script", {"code": "1"})).text == "not the gateway"
    async with Gateway({"scopes": {"default": {**scope, "scripts": "on"}}}, {"imitation": imitation}) as gate:
        reply = await (await gate.caller("2025")).call("run_script", {"code": "1"})
        assert structured(reply.result)["result"] == 1


def rules(*rows: dict[str, str]) -> dict[str, Any]:
    return {**ON, "governance": {"rules": list(rows)}}


@virtual_time
async def test_rule_for_scripts_holds_only_calls_of_scripts() -> None:
    store = shop()
    async with Gateway(rules({"match": "buy", "from": "script", "action": "approve"}), {"shop": store}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("shop__buy", {"n": 1})).text == "bought 1"
        task = await started(gate, caller, "await shop.buy(n=2)")
        await gate.advance(5)
        assert store.count("buy") == 1
        assert await approve_all(gate) == 1
        assert structured(await ended(caller, task))["result"] == "bought 2"
        assert store.count("buy") == 2


@virtual_time
async def test_tool_can_be_denied_to_scripts_only() -> None:
    store = shop()
    async with Gateway(rules({"match": "buy", "from": "script", "action": "deny"}), {"shop": store}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("run_script", {"code": CAUGHT})
        assert structured(reply.result)["result"] == ["policy_denied", "no"]
        assert store.count("buy") == 0
        plan = await caller.call("run_script", {"code": "await shop.buy(n=1)", "dry_run": True})
        assert [tool["meets"] for tool in json.loads(plan.text)["tools"]] == ["denied"]
        assert (await caller.call("shop__buy", {"n": 1})).text == "bought 1"


@virtual_time
async def test_tool_can_be_reserved_for_scripts() -> None:
    store = shop()
    only_scripts = rules({"match": "buy", "from": "script", "action": "forward"}, {"match": "buy", "action": "deny"})
    async with Gateway(only_scripts, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        plain = await caller.request("tools/call", {"name": "shop__buy", "arguments": {"n": 1}})
        assert plain.error["data"]["error_type"] == "policy_denied"
        reply = await caller.call("run_script", {"code": "await shop.buy(n=1)"})
        assert structured(reply.result)["result"] == "bought 1"
        assert store.count("buy") == 1


@virtual_time
async def test_approved_call_of_a_script_is_checked_again_by_rules_for_scripts() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, CAUGHT)
        await gate.advance(5)
        denied = {"match": "buy", "from": "script", "action": "deny"}
        await gate.reload(rules(denied, {"match": "buy", "action": "approve"}))
        assert await approve_all(gate) == 1
        assert structured(await ended(caller, task))["result"] == ["policy_drift", "no"]
        assert store.count("buy") == 0


async def page_of_the_operator(gate: Gateway, path: str) -> str:
    link = (await gate.operator("POST", "/api/login-links", {})).json()["url"]
    code = urlsplit(link).query
    form = (await gate.http("GET", f"/login?{code}").done()).body.decode()
    token = form.partition('name="form_token" value="')[2].partition('"')[0]
    kind = {"content-type": "application/x-www-form-urlencoded"}
    entered = await gate.http("POST", "/login", f"{code}&form_token={quote(token)}".encode(), kind).done()
    cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    return (await gate.http("GET", path, None, cookie).done()).body.decode()


@virtual_time
async def test_approver_of_a_script_sees_its_code_as_text() -> None:
    store = shop()
    async with Gateway(rules({"match": "taskgate:run_script", "action": "approve"}), {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "x = '</pre><b id=hostile>\u202e'\nawait shop.buy(n=1)")
        [waiting] = (await gate.operator("GET", "/api/approvals")).json()
        detail = (await gate.operator("GET", f"/api/v1/approvals/{waiting['id']}")).json()
        assert detail["script"] == "x = '</pre><b id=hostile>\\u202e'\nawait shop.buy(n=1)"
        page = await page_of_the_operator(gate, f"/approvals/{waiting['id']}")
        assert "&lt;b id=hostile&gt;\\u202e&#39;</li><li>await shop.buy(n=1)</li>" in page
        assert "<b id=hostile>" not in page
        assert await approve_all(gate) == 1
        assert structured(await ended(caller, task))["result"] == "bought 1"


@virtual_time
async def test_caller_is_notified_of_its_script_and_not_of_each_call() -> None:
    async with Gateway({**ON, **CLASSES, **APPROVE_BUY}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        stream = await caller.listen()
        task = await started(gate, caller, "await shop.read(n=1)\nawait shop.buy(n=2)")
        await gate.advance(60)
        pending = (await caller.call_json("await_activity", timeout_ms=1000))["pending_server"]
        assert [one["taskId"] for group in pending for one in group["working_tasks"]] == [task]
        assert await approve_all(gate) == 1
        await ended(caller, task)
        await gate.advance(60)
        changes = [m["params"]["taskId"] for m in stream.reply.messages if m["method"] == "notifications/tasks/status"]
        assert set(changes) == {task}


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_failed_script_of_a_plain_call_names_its_task_and_the_call_that_continues_it(generation: str) -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller(generation)
        reply = await caller.call("run_script", {"code": "await shop.buy(n=1)\nraise ValueError('typo')"})
        assert reply.result["isError"] is True
        error = structured(reply.result)["error"]
        assert error["resume_with"] == {"tool": "run_script", "arguments": {"resume_of": error["task_id"]}}
        assert f'resume_of="{error["task_id"]}"' in reply.text
        again = {"code": "await shop.buy(n=1)", **error["resume_with"]["arguments"]}
        assert structured((await caller.call("run_script", again)).result)["result"] == "bought 1"
        assert store.count("buy") == 1
