"""`executed` in errors about tasks: it is about the task's call, comes from its record, and is absent without one."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Reply, Upstream, until, virtual_time

from taskgate.inbound.http.refusals import MAX_EXAMINED_BYTES, without_unproved_executed

UNKNOWN = "tg_01HZZZZZZZZZZZZZZZZZZZZZZZ"
APPROVING = {"governance": {"rules": [{"match": "*", "action": "approve"}]}}


def sleeping() -> Upstream:
    server = Upstream()

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(600)
        return "done"

    return server


def data_of(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)["error"]["data"] if reply.body[:1] == b"{" else reply.error["data"]
    return found


async def task_of(caller: Any, tool: str, **more: Any) -> str:
    handle = (await caller.call(tool, {}, task={"ttl": 600_000}, **more)).result
    found: str = handle["taskId"]
    return found


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{"taskId": UNKNOWN}, {"taskId": 7}, {}], ids=["unknown", "a number", "none"])
@virtual_time
async def test_error_without_record_states_nothing_2025(method: str, params: dict[str, Any]) -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2025")
        assert "executed" not in data_of(await caller.request(method, params))


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("capabilities", [TASKS_EXTENSION, {}], ids=["declared", "undeclared"])
@virtual_time
async def test_error_without_record_states_nothing_2026(method: str, capabilities: dict[str, Any]) -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2026", capabilities=capabilities)
        assert "executed" not in data_of(await caller.request(method, {"taskId": UNKNOWN, "inputResponses": {}}))


@virtual_time
async def test_refused_credential_states_nothing_about_tasks() -> None:
    """The refusal comes before the request is read."""
    async with Gateway({"tokens": [{"id": "ann", "sha256": "0" * 64}]}, {"notes": Upstream()}) as gate:
        for method, params, executed in [
            ("tasks/get", {"taskId": UNKNOWN}, None),
            ("tools/call", {"name": "get_task_result", "arguments": {"task_id": UNKNOWN}}, None),
            ("tools/call", {"name": "notes__echo", "requestState": "x"}, "maybe"),
            ("tools/call", {"name": "notes__echo"}, "no"),
        ]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            reply = await gate.http("POST", "/mcp", body, {"accept": "application/json"}).done()
            assert reply.status == 401
            assert data_of(reply).get("executed") == executed


@virtual_time
async def test_lost_session_states_nothing_about_tasks() -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2025")
        await caller.close()
        gone = await caller.request("tasks/get", {"taskId": UNKNOWN})
        assert gone.status == 404
        assert "executed" not in data_of(gone)
        called = await caller.call("notes__echo")
        assert data_of(called)["executed"] == "no"


@virtual_time
async def test_result_awaited_at_sigterm_may_have_been_executed() -> None:
    server = sleeping()
    async with Gateway({"limits": {"drain_timeout": "5s"}}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = await task_of(caller, "notes__slow")
        await until(lambda: server.count("slow") == 1)
        waiting = caller.begin("tasks/result", {"taskId": task_id})
        await gate.advance(1)
        gate.send_signal(signal.SIGTERM)
        error = (await waiting.done()).error
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("shutting_down", "maybe")
        await gate.stop()


@virtual_time
async def test_finished_task_that_is_cancelled_was_executed() -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = await task_of(caller, "notes__echo")
        await caller.request("tasks/result", {"taskId": task_id})
        data = data_of(await caller.request("tasks/cancel", {"taskId": task_id}))
        assert (data["error_type"], data["executed"], data["task_id"]) == ("task_finished", "yes", task_id)


@virtual_time
async def test_denied_task_that_is_cancelled_was_not_executed() -> None:
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = await task_of(caller, "notes__echo")
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.operator("POST", f"/api/approvals/{waiting['id']}/deny", {})
        data = data_of(await caller.request("tasks/cancel", {"taskId": task_id}))
        assert (data["error_type"], data["executed"]) == ("task_finished", "no")
        assert server.count() == 0


@virtual_time
async def test_task_that_is_polled_too_often_may_be_executed() -> None:
    server = sleeping()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = await task_of(caller, "notes__slow")
        polls = [caller.begin("tasks/get", {"taskId": task_id}) for _ in range(60)]
        answers = [(await poll.done()).messages[-1] for poll in polls]
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert {(error["data"]["error_type"], error["data"]["executed"]) for error in errors} == {
            ("rate_limited", "maybe")
        }


@pytest.mark.parametrize("tool", ["get_task", "get_task_result", "cancel_task"])
@virtual_time
async def test_helper_tool_states_nothing_about_unknown_task(tool: str) -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2025")
        result = (await caller.call(tool, {"task_id": UNKNOWN})).result
        assert result["_meta"]["taskgate/error"]["error_type"] == "unknown_task"
        assert "executed" not in result["_meta"]["taskgate/error"]


@virtual_time
async def test_answer_to_unknown_question_states_nothing() -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        caller = await gate.caller("2025")
        result = (await caller.call("respond_to_elicitation", {"request_id": "q1", "action": "decline"})).result
        assert "executed" not in result["_meta"]["taskgate/error"]


@virtual_time
async def test_call_after_its_first_round_may_have_been_executed() -> None:
    """The state that the caller returns is not valid: what the first round did is unknown."""
    async with Gateway({}, {"notes": Upstream("2026")}) as gate:
        caller = await gate.caller("2026")
        refused = await caller.call("notes__echo", {}, requestState="forged", inputResponses={})
        assert data_of(refused)["executed"] == "maybe"
        unknown = await caller.call("notes__nothing", {})
        assert data_of(unknown)["executed"] == "no"


@virtual_time
async def test_vendor_task_that_exists_states_its_record() -> None:
    server = Upstream()
    async with Gateway({"compat": {"vendor_methods": True}}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        made = {"id": "order-7", "action": "notes__echo", "arguments": {}}
        await caller.request("tasks/create", made)
        await caller.request("tasks/result", {"taskId": "order-7"})
        await gate.advance(1)
        data = data_of(await caller.request("tasks/create", made))
        assert (data["error_type"], data["executed"]) == ("task_exists", "yes")
        assert server.count("echo") == 1


@virtual_time
async def test_internal_error_reports_executed_maybe(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Upstream()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__echo")

        def breaks(*_: object) -> bool:
            raise ZeroDivisionError

        # After the server's answer, so that the tool has run.
        monkeypatch.setattr("taskgate.gateway.governance.journal.Journal.note", breaks)
        reply = await caller.call("notes__echo")
        assert server.count("echo") == 2
        assert (data_of(reply)["error_type"], data_of(reply)["executed"]) == ("internal", "maybe")


def test_refusal_of_unread_request() -> None:
    error = b'{"jsonrpc":"2.0","id":12345678901234567890123,"error":{"code":1,"message":"no","data":{"executed":"no","a":1}}}'

    def stated(request: Any) -> Any:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        found = json.loads(without_unproved_executed(error, body))
        assert found["id"] == 12345678901234567890123
        return found["error"]["data"].get("executed")

    assert stated({"method": "tools/call", "params": {"name": "x"}}) == "no"
    assert stated({"method": "tools/call"}) == "no"
    assert stated({"method": "tasks/get", "params": {"taskId": "x"}}) is None
    assert stated({"method": "tools/call", "params": {"requestState": None}}) == "maybe"
    assert stated(b"{no json") == "no"
    assert stated(b"[" * 5000) == "no"
    assert stated({"method": "tools/call", "params": {"name": "x" * MAX_EXAMINED_BYTES}}) is None
    assert without_unproved_executed(b"", b"{}") == b""
