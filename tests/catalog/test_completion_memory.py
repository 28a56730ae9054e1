"""What the gateway remembers about a caller's calls is used for that caller only; anonymous callers are different callers."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time
from tests.virtual_time.upstream import text

from taskgate.core.completion.memory import CompletionPlace
from taskgate.gateway.catalog.completions import Completions
from taskgate.gateway.events import EventHub, SessionEnded

TOKENS = {"ann": "a" * 40, "bob": "b" * 40}
KNOWN = [{"id": name, "sha256": hashlib.sha256(token.encode()).hexdigest()} for name, token in TOKENS.items()]


def server() -> Upstream:
    notes = Upstream("2025", capabilities={"prompts": {}, "resources": {}})

    async def prompts(_call: Call) -> dict[str, Any]:
        return {"prompts": [{"name": "greet", "arguments": [{"name": "city"}]}]}

    async def prompt(_call: Call) -> dict[str, Any]:
        return {"messages": []}

    async def nothing(call: Call) -> dict[str, Any]:
        return {"resources": [], "resourceTemplates": []}

    async def read(call: Call) -> dict[str, Any]:
        return {"contents": [{"uri": call.params["uri"], "text": "page"}]}

    @notes.tool("linked")
    async def linked(_call: Call) -> dict[str, Any]:
        link = {"type": "resource_link", "uri": "https://elsewhere.test/page", "name": "page"}
        return {**text("see"), "content": [link]}

    notes.on("prompts/list", prompts)
    notes.on("prompts/get", prompt)
    notes.on("resources/list", nothing)
    notes.on("resources/templates/list", nothing)
    notes.on("resources/read", read)
    return notes


async def suggested(caller: Any, ref: dict[str, Any], argument: str, typed: str, **more: Any) -> list[str]:
    params = {"ref": ref, "argument": {"name": argument, "value": typed}, **more}
    values: list[str] = (await caller.request("completion/complete", params)).result["completion"]["values"]
    return values


TOOL = {"type": "ref/tool", "name": "notes__echo"}
PROMPT = {"type": "ref/prompt", "name": "notes__greet"}


@virtual_time
async def test_anonymous_2026_callers_are_not_offered_each_others_values() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        one, two = await gate.caller("2026"), await gate.caller("2026")
        await one.call("notes__echo", {"project": "merger-falcon"})
        await one.request("prompts/get", {"name": "notes__greet", "arguments": {"city": "Reykjavik"}})
        for caller in (one, two):
            assert await suggested(caller, TOOL, "project", "mer") == []
            assert await suggested(caller, PROMPT, "city", "Rey") == []


@virtual_time
async def test_named_anonymous_2026_callers_have_separate_completion_memories() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        mine, other = {"taskgate/client": "mine"}, {"taskgate/client": "other"}
        await caller.call("notes__echo", {"project": "merger-falcon"}, _meta=mine)
        assert await suggested(caller, TOOL, "project", "mer", _meta=mine) == ["merger-falcon"]
        assert await suggested(caller, TOOL, "project", "mer", _meta=other) == []
        assert await suggested(caller, TOOL, "project", "mer") == []


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_callers_with_tokens_have_separate_completion_memories(generation: str) -> None:
    async with Gateway({"tokens": KNOWN}, {"notes": server()}) as gate:
        ann, bob = [await gate.caller(generation, token=token) for token in TOKENS.values()]
        await ann.call("notes__echo", {"project": "merger-falcon"})
        assert await suggested(ann, TOOL, "project", "mer") == ["merger-falcon"]
        assert await suggested(bob, TOOL, "project", "mer") == []


@virtual_time
async def test_an_answer_for_one_anonymous_caller_is_not_given_to_another() -> None:
    """The answer may depend on the conversation, so even an equal request is sent again."""
    notes = server()
    notes.capabilities["completions"] = {}
    numbers = iter(range(100))

    async def complete(_call: Call) -> dict[str, Any]:
        return {"completion": {"values": [f"answer-{next(numbers)}"]}}

    notes.on("completion/complete", complete)
    async with Gateway({}, {"notes": notes}) as gate:
        one, two = await gate.caller("2026"), await gate.caller("2026")
        assert await suggested(one, PROMPT, "city", "a") == ["answer-0"]
        assert await suggested(two, PROMPT, "city", "a") == ["answer-1"]


@virtual_time
async def test_values_of_an_ended_session_are_deleted() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        events, place = EventHub(), CompletionPlace("notes", "echo", "project")
        completions = Completions(gate.life.app.gateway.console.plan, events)
        (session,) = gate.life.app.gateway.lifecycle.sessions
        for key in (session.key, "ann"):
            completions.note(key, "notes", "echo", {"project": "merger-falcon"})
            assert list(completions.used(key, place)) == ["merger-falcon"]
            completions.note(key, "notes", "echo", {"project": "merger-osprey"})
        events.publish(SessionEnded(session))
        assert list(completions.used(session.key, place)) == []
        assert list(completions.used("ann", place)) == ["merger-falcon", "merger-osprey"]
        await caller.close()


@virtual_time
async def test_values_of_an_erased_person_are_deleted() -> None:
    async with Gateway({"tokens": KNOWN}, {"notes": server()}) as gate:
        ann, bob = [await gate.caller("2026", token=token) for token in TOKENS.values()]
        for caller in (ann, bob):
            await caller.call("notes__echo", {"project": "merger-falcon"})
        erased = await gate.operator("POST", "/api/v1/data/erase", {"principal": "ann"})
        assert erased.status == 200, erased.body
        assert await suggested(ann, TOOL, "project", "mer") == []
        assert await suggested(bob, TOOL, "project", "mer") == ["merger-falcon"]


@virtual_time
async def test_a_link_given_to_one_anonymous_session_opens_nothing_for_another() -> None:
    async with Gateway({}, {"notes": server(), "more": server()}) as gate:
        one, two = await gate.caller("2025"), await gate.caller("2025")
        await one.call("notes__linked")
        page = {"uri": "https://elsewhere.test/page"}
        assert (await one.request("resources/read", page)).result["contents"][0]["text"] == "page"
        refused = (await two.request("resources/read", page)).last["error"]
        assert refused["data"]["error_type"] == "unknown_resource"
