"""Tools for models: reversible names, definitions, and calls that always return a message."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskgate.client import Tool, connect
from taskgate.client.openai_tools import LONGEST_NAME, definitions, dispatch, original_name, safe_name

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(NAMES)
def test_every_name_becomes_a_valid_reversible_function_name(name: str) -> None:
    safe = safe_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", safe)
    assert len(safe) <= LONGEST_NAME
    assert original_name(safe, [name]) == name


@given(st.lists(NAMES, unique=True, max_size=20))
def test_different_names_stay_different(names: list[str]) -> None:
    assert len({safe_name(name) for name in names}) == len(names)


def test_ordinary_names_are_left_alone() -> None:
    assert safe_name("files__read-file_2") == "files__read-file_2"
    assert original_name("mcp_b64_!!!") == "mcp_b64_!!!"


def test_definitions_come_in_both_forms() -> None:
    tool = Tool.from_wire({"name": "a.b", "description": "does", "inputSchema": {"type": "object", "required": ["x"]}})
    chat = definitions([tool])[0]
    assert chat["type"] == "function"
    assert chat["function"]["parameters"] == {"type": "object", "required": ["x"], "properties": {}}
    flat = definitions([tool], flat=True)[0]
    assert (flat["type"], flat["name"]) == ("function", chat["function"]["name"])


def test_tools_for_apps_only_are_not_offered_to_models() -> None:
    offered = {
        name: Tool.from_wire({"name": name, "inputSchema": {}, "_meta": meta})
        for name, meta in {
            "both": {"ui": {"visibility": ["model", "app"]}},
            "model": {"ui": {"visibility": ["model"]}},
            "app": {"ui": {"visibility": ["app"]}},
            "odd": {"ui": {"visibility": "app"}},
            "plain": None,
        }.items()
    }
    names = [made["function"]["name"] for made in definitions(list(offered.values()))]
    assert names == ["both", "model", "odd", "plain"]


def call(name: str, arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


async def test_every_tool_call_of_a_model_gets_an_answer(faulty: str) -> None:
    async with connect(faulty, generation="stateful", default_poll_interval=0.25) as session:
        answers = await dispatch(
            session,
            [
                call("echo", json.dumps({"text": "one"})),
                call("echo", {"text": "two"}),
                call("echo", "{not json"),
                call("echo", "[1]"),
                call("unasked_task", None),
                call("vanish", ""),
                call("big_integer", ""),
                {"type": "function_call", "call_id": "c9", "name": "echo", "arguments": '{"text": "flat"}'},
            ],
        )
    texts = [str(answer.get("content")) for answer in answers]
    assert texts[:2] == ["one", "two"]
    assert texts[2].startswith("Error: ")
    assert "must be a JSON object" in texts[3]
    assert texts[4:6] == ["true result", "true result"]
    assert json.loads(texts[6]) == {"n": 2**100 + 1, "f": 1.5}
    assert answers[7] == {"type": "function_call_output", "call_id": "c9", "output": "flat"}
    assert all(answer["role"] == "tool" and answer["tool_call_id"] == "1" for answer in answers[:7])
