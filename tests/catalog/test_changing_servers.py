"""A server that returns with other lists: the gateway lists and calls what it has now, and reports the change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

PROMPT = {"type": "ref/prompt", "name": "notes__letter"}


async def _letters(_call: Call) -> dict[str, Any]:
    return {"prompts": [{"name": "letter", "arguments": [{"name": "to"}]}]}


async def _ann(_call: Call) -> dict[str, Any]:
    return {"completion": {"values": ["Ann"]}}


async def _text(_call: Call) -> str:
    return "said"


@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_a_new_capability_of_a_reconnected_server_is_used_although_no_list_changed(generation: str) -> None:
    @virtual_time
    async def scenario() -> None:
        notes = Upstream(generation, capabilities={"prompts": {}})
        notes.on("prompts/list", _letters)
        notes.on("completion/complete", _ann)
        async with Gateway({}, {"notes": notes}) as gate:
            caller = await gate.caller("2025")
            asked = {"ref": PROMPT, "argument": {"name": "to", "value": ""}}
            assert (await caller.request("completion/complete", asked)).result["completion"]["values"] == []
            await notes.stop()
            notes.forget_sessions()
            notes.capabilities["completions"] = {}
            await notes.start()
            await gate.advance(120)
            assert (await caller.request("completion/complete", asked)).result["completion"]["values"] == ["Ann"]

    scenario()


@virtual_time
async def test_an_unannounced_tool_is_listed_by_age_with_a_warning_and_its_annotation() -> None:
    notes = Upstream("2025")
    notes.capabilities["tools"] = {}
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        notes.tool("late", _text)
        await gate.advance(130)
        assert "notes__late" in {tool["name"] for tool in await caller.tools()}
        warned = [line for line in gate.log if line.level == "warning" and "new tool" in line.event]
        assert [line.facts["tool"] for line in warned] == ["late"]
        assert any("Tool annotation: late" in line.event for line in gate.log)


@virtual_time
async def test_a_plain_call_of_a_tool_that_requires_a_task_is_refused_and_counted_in_strict_mode() -> None:
    notes = Upstream("2025", capabilities={"tasks": {"requests": {"tools": {"call": {}}}}})
    notes.tool("job", _text, execution={"taskSupport": "required"})
    async with Gateway({"tasks": {"annotation_mode": "strict"}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("notes__job")
        assert reply.error["data"]["error_type"] == "task_required"
        assert notes.count("job") == 0
        shown = (await gate.http("GET", "/metrics").done()).body.decode().splitlines()
        assert 'taskgate_task_validation_errors_total{error="required"} 1.0' in shown
        assert 'taskgate_requests_total{method="tools/call",outcome="task_required"} 1.0' in shown


async def _dear(call: Call) -> dict[str, Any]:
    body = {"type": "text", "text": f"Dear {call.params['arguments']['to']}"}
    return {"messages": [{"role": "user", "content": body}]}


async def _page(call: Call) -> dict[str, Any]:
    return {"contents": [{"uri": call.params["uri"], "text": "page"}]}


@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_undeclared_methods_are_forwarded_to_the_only_server_but_not_to_one_of_several(generation: str) -> None:
    """Servers may answer prompts and URIs without having any list of them; then they declare nothing."""

    def answering() -> Upstream:
        notes = Upstream(generation, capabilities={"completions": {}})
        notes.on("prompts/get", _dear)
        notes.on("resources/read", _page)
        notes.on("completion/complete", _ann)
        return notes

    letter = {"name": "notes__letter", "arguments": {"to": "Ann"}}
    page = {"uri": "note://1"}
    typed = {"ref": PROMPT, "argument": {"name": "to", "value": "A"}}

    @virtual_time
    async def alone() -> None:
        async with Gateway({}, {"notes": answering()}) as gate:
            caller = await gate.caller(generation)
            written = (await caller.request("prompts/get", letter)).result
            assert written["messages"][0]["content"]["text"] == "Dear Ann"
            assert (await caller.request("resources/read", page)).result["contents"][0]["text"] == "page"
            assert (await caller.request("completion/complete", typed)).result["completion"]["values"] == ["Ann"]

    @virtual_time
    async def beside_another() -> None:
        notes = answering()
        async with Gateway({}, {"notes": notes, "other": answering()}) as gate:
            caller = await gate.caller(generation)
            for method, asked in (("prompts/get", letter), ("resources/read", page)):
                assert (await caller.request(method, asked)).error["data"]["executed"] == "no"
                assert notes.methods[method] == 0

    alone()
    beside_another()
