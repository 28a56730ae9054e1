"""Completions: the server's suggestions first, then those of the gateway, and the error for every invalid reference."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.features.wire_client import WireClient, config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(config()) as running:
        yield running


async def completed(caller: WireClient, ref: dict[str, Any], name: str, value: str, **given: str) -> dict[str, Any]:
    params = {"ref": ref, "argument": {"name": name, "value": value}}
    if given:
        params["context"] = {"arguments": given}
    return (await caller.ask("completion/complete", params))["completion"]


def tool(name: str) -> dict[str, Any]:
    return {"type": "ref/tool", "name": name}


async def test_a_prompt_is_completed_by_its_owner_and_unknown_members_pass(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "city", "value": "Par"}}
        result = await caller.ask("completion/complete", params)
        assert result == {
            "completion": {"values": ["Paris", "Parma"], "total": 2, "hasMore": False},
            "extra": "kept",
        }


async def test_a_command_reference_is_a_prompt_or_else_a_tool(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        as_prompt = await completed(caller, {"type": "ref/command", "name": "greet"}, "city", "Pra")
        as_tool = await completed(caller, {"type": "ref/command", "name": "weather"}, "city", "Pra")
        assert as_prompt["values"] == ["Prague"]
        assert as_tool["values"][0] == "Prague"


@pytest.mark.parametrize(
    ("argument", "typed", "values"),
    [
        ("city", "pa", ["Paris", "Parma"]),
        ("city", "Prauge", ["Prague"]),
        ("units", "", ["metric"]),
        ("dry_run", "", ["false", "true"]),
        ("uri", "notes://alpha", ["notes://alpha", "notes://alphabet"]),
        ("nothing", "x", []),
    ],
)
async def test_tool_arguments_are_completed_from_their_schema(
    gateway: Gateway, argument: str, typed: str, values: list[str]
) -> None:
    async with session(gateway) as caller:
        found = await completed(caller, tool("weather"), argument, typed)
        assert found == {"values": values, "total": len(values), "hasMore": False}


async def test_a_template_is_completed_from_listed_resources(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        found = await completed(caller, {"type": "ref/resource", "uri": "notes://{name}"}, "name", "alp")
        assert found["values"] == ["alpha", "alphabet"]


async def test_names_and_uris_themselves_can_be_completed(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        assert (await completed(caller, tool(""), "name", "weat"))["values"] == ["weather"]
        commands = await completed(caller, {"type": "ref/command", "name": ""}, "name", "gre")
        assert commands["values"] == ["greet"]
        uris = await completed(caller, {"type": "ref/resource", "uri": ""}, "uri", "notes://b")
        assert uris["values"][0] == "notes://beta"


async def test_values_used_before_come_first_and_only_for_the_same_caller(gateway: Gateway) -> None:
    async with session(gateway) as caller, session(gateway) as other:
        await caller.call("weather", {"city": "Parma", "note": "quarterly", "api_key": "sk-live-0123456789"})
        assert (await completed(caller, tool("weather"), "city", "Pa"))["values"] == ["Parma", "Paris"]
        assert (await completed(caller, tool("weather"), "note", "qu"))["values"] == ["quarterly"]
        assert (await completed(caller, tool("weather"), "api_key", "sk"))["values"] == []
        assert (await completed(other, tool("weather"), "note", "qu"))["values"] == []


async def test_given_arguments_rank_equal_suggestions(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        await caller.call("weather", {"city": "Paris", "note": "from the north"})
        await caller.call("weather", {"city": "Berlin", "note": "from the south"})
        given = await completed(caller, tool("weather"), "note", "from", city="Paris")
        assert given["values"] == ["from the north", "from the south"]


async def test_a_stateless_completion_has_a_complete_result(gateway: Gateway) -> None:
    async with stateless(gateway) as caller:
        params = {"ref": tool("weather"), "argument": {"name": "city", "value": "Ber"}}
        result = await caller.ask("completion/complete", params)
        assert result["resultType"] == "complete"
        assert result["completion"]["values"] == ["Berlin"]


async def test_learning_can_be_switched_off() -> None:
    async with running_gateway(config(completion={"learn": False})) as running, session(running) as caller:
        await caller.call("weather", {"city": "Parma", "note": "quarterly"})
        assert (await completed(caller, tool("weather"), "note", "qu"))["values"] == []


GOOD = {"name": "city", "value": "P"}


@pytest.mark.parametrize(
    ("params", "kind", "named", "legacy"),
    [
        ({}, "invalid_params", ("ref", "argument"), None),
        (
            {"ref": "greet", "argument": GOOD},
            "invalid_params",
            ("ref", "argument"),
            None,
        ),
        (
            {"ref": {"type": "ref/magic", "name": "x"}, "argument": GOOD},
            "unknown_reference",
            ("ref.type",),
            -32021,
        ),
        ({"ref": {"type": "ref/prompt"}, "argument": GOOD}, "invalid_params", ("ref", "name"), None),
        ({"ref": {"type": "ref/resource"}, "argument": GOOD}, "invalid_params", ("ref", "uri"), None),
        (
            {"ref": {"type": "ref/resource", "uri": "not a uri"}, "argument": GOOD},
            "invalid_uri",
            ("ref.uri",),
            -32022,
        ),
        (
            {"ref": tool("weather"), "argument": {"name": "city"}},
            "invalid_params",
            ("argument", "name", "value"),
            None,
        ),
        (
            {"ref": tool("weather"), "argument": GOOD, "context": {"arguments": []}},
            "invalid_params",
            ("context", "arguments"),
            None,
        ),
    ],
)
async def test_a_bad_reference_is_refused_exactly(
    gateway: Gateway, params: dict[str, Any], kind: str, named: tuple[str, ...], legacy: int | None
) -> None:
    async with session(gateway) as caller:
        problem = await refused(caller.ask("completion/complete", params))
        assert (problem.code, problem.kind) == (-32602, kind)
        assert problem.names(named)
        assert problem.error["data"].get("legacy_code") == legacy
        assert problem.error["data"]["executed"] == "no"
