"""Numbers of an older family of servers: on the wire with `errors.profile: erlmcp`, otherwise as `legacy_code`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Failure, Gateway, Upstream, virtual_time

ERLMCP: dict[str, Any] = {"errors": {"profile": "erlmcp"}}
VENDOR: dict[str, Any] = {"compat": {"vendor_methods": True}}
TASKS: dict[str, Any] = {"tasks": {}}


def one_server(*, completes: bool) -> Upstream:
    notes = Upstream("2025")
    notes.capabilities["prompts"] = {}

    async def prompts(_call: Call) -> dict[str, Any]:
        return {"prompts": [{"name": "hello"}]}

    notes.on("prompts/list", prompts)
    if completes:
        notes.capabilities["completions"] = {}

        async def complete(call: Call) -> dict[str, Any]:
            if call.params["ref"].get("name") != "hello":
                raise Failure(-32602, "Unknown prompt")
            return {"completion": {"values": ["world"]}}

        notes.on("completion/complete", complete)
    return notes


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("names", ["prefixed", "plain"])
@pytest.mark.parametrize(("profile", "code"), [({}, -32602), (ERLMCP, -32021)])
@virtual_time
async def test_unknown_reference_with_one_server(
    completes: bool, names: str, profile: dict[str, Any], code: int
) -> None:
    config = {**profile, "scopes": {"default": {"default_servers": ["*"], "names": names}}}
    prefix = "" if names == "plain" else "notes__"
    async with Gateway(config, {"notes": one_server(completes=completes)}) as gate:
        caller = await gate.caller("2025")
        asked = {"ref": {"type": "ref/prompt", "name": f"{prefix}nothing"}, "argument": {"name": "a", "value": ""}}
        error = (await caller.request("completion/complete", asked)).error
        assert (error["code"], error["data"]["error_type"]) == (code, "unknown_reference")
        assert error["data"]["legacy_code"] == -32021
        asked["ref"]["name"] = f"{prefix}hello"
        found = (await caller.request("completion/complete", asked)).result
        assert found["completion"]["values"] == (["world"] if completes else [])


@pytest.mark.parametrize("reply", ["empty", "internal error", "not offered"])
@virtual_time
async def test_unknown_template_with_one_server_is_refused_like_by_the_older_servers(reply: str) -> None:
    """Many servers answer for a template that they do not have as for one without values."""
    notes = Upstream("2025")
    notes.capabilities |= {"resources": {}, "completions": {}}

    async def templates(_call: Call) -> dict[str, Any]:
        return {"resourceTemplates": [{"name": "note", "uriTemplate": "note://{id}"}]}

    async def complete(call: Call) -> dict[str, Any]:
        if reply != "empty" and call.params["ref"]["uri"] != "note://{id}":
            raise Failure(-32603 if reply == "internal error" else -32601, "No")
        return {"completion": {"values": []}}

    notes.on("resources/templates/list", templates)
    notes.on("completion/complete", complete)
    async with Gateway(ERLMCP, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        asked = {"ref": {"type": "ref/resource", "uri": "note://{other}"}, "argument": {"name": "other", "value": ""}}
        error = (await caller.request("completion/complete", asked)).error
        assert (error["code"], error["data"]["error_type"]) == (-32021, "unknown_reference")
        asked["ref"]["uri"] = "note://{id}"
        assert (await caller.request("completion/complete", asked)).result["completion"]["values"] == []


@pytest.mark.parametrize(("profile", "code"), [({}, -32602), (ERLMCP, -32048)])
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_relayed_sampling_with_invalid_preferences_is_refused(
    generation: str, profile: dict[str, Any], code: int
) -> None:
    notes, refusals = Upstream("2025"), list[dict[str, Any]]()

    @notes.tool("think")
    async def think(call: Call) -> str:
        content = {"type": "text", "text": "Hello"}
        messages = [{"role": "user", "content": content}]
        for preferences in ({"costPriority": 7}, {"costPriority": 0.5}):
            params = {"messages": messages, "maxTokens": 10, "modelPreferences": preferences}
            reply = await call.ask("sampling/createMessage", params)
            if "error" in reply:
                refusals.append(reply["error"])
        return "thought"

    async with Gateway(profile, {"notes": notes}) as gate:
        answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Hi"}}
        answers = {"sampling/createMessage": answer}
        caller = await gate.caller(generation, capabilities={"sampling": {}}, answers=answers)
        reply = await caller.call("notes__think")
        assert (reply.text if generation == "2025" else reply.result["resultType"]) in ("thought", "input_required")
        (refusal,) = refusals
        assert (refusal["code"], refusal["data"]["legacy_code"]) == (code, -32048)
        assert refusal["data"]["error_type"] == "invalid_model_preferences"


def failing_server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("break")
    async def break_it(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "no such file"}], "isError": True}

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(30)
        return "done"

    return notes


@virtual_time
async def test_failed_task_has_result_and_error_inline() -> None:
    async with Gateway(VENDOR, {"notes": failing_server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.request("tasks/create", {"action": "notes__break"})).result["taskId"]
        await gate.advance(2)
        shown = (await caller.request("tasks/get", {"taskId": made})).result
        assert (shown["status"], shown["result"]["isError"]) == ("failed", True)
        assert shown["result"]["content"][0]["text"] == "no such file"
        assert shown["error"]["data"]["error_type"] == "tool_failed"
        assert shown["error"]["message"]


@pytest.mark.parametrize(("profile", "code"), [({}, -32602), (ERLMCP, -32089)])
@virtual_time
async def test_result_not_ready_is_an_option(profile: dict[str, Any], code: int) -> None:
    compat = {"compat": {"vendor_methods": True, "result_not_ready": True}}
    async with Gateway({**profile, **compat}, {"notes": failing_server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.request("tasks/create", {"action": "notes__slow"})).result["taskId"]
        by_mcp = (await caller.call("notes__slow", task={"ttl": 60_000})).result["task"]["taskId"]
        for task_id in (made, by_mcp):
            error = (await caller.request("tasks/result", {"taskId": task_id})).error
            assert (error["code"], error["data"]["legacy_code"]) == (code, -32089)
            assert error["data"]["error_type"] == "result_not_ready"
        await gate.advance(31)
        for task_id in (made, by_mcp):
            assert (await caller.request("tasks/result", {"taskId": task_id})).text == "done"


@virtual_time
async def test_result_is_waited_for_by_default() -> None:
    async with Gateway(VENDOR, {"notes": failing_server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.request("tasks/create", {"action": "notes__slow"})).result["taskId"]
        waiting = caller.begin("tasks/result", {"taskId": made})
        await gate.advance(31)
        assert (await waiting.done()).text == "done"
