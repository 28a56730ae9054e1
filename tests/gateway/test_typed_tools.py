"""Tools with an output schema: replies of the gateway in their place are valid for the listed schema."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.harness.changeable_server import ChangeableServer, changeable, tool
from tests.harness.gateway import running_gateway
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.virtual_time
SCHEMA = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}},
    "required": ["rows"],
    "additionalProperties": False,
    "$defs": {"Row": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
}
ROWS = {"rows": [{"text": "a"}]}
BOTH = pytest.mark.parametrize("stateless", [False, True])


def answering(structured: Any, text: str = "done") -> Any:
    result = {"content": [{"type": "text", "text": text}], "structuredContent": structured}
    return lambda _params: {"result": result}


def typed(**attributes: Any) -> Any:
    lists = {"tools/list": [tool("report", outputSchema=SCHEMA)]}
    return changeable(lists=lists, answers={"tools/call": answering(ROWS)}, **attributes)


def config(server: ChangeableServer, **more: Any) -> dict[str, Any]:
    return {"schema": 1, "servers": {"s": {"url": server.url}}, **more}


async def listed_schema(caller: RawClient, name: str = "s__report") -> Any:
    tools = (await caller.request("tools/list")).result["tools"]
    return next(entry for entry in tools if entry["name"] == name).get("outputSchema")


def notice_in(schema: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The notice of a result that a client would accept."""
    assert schema["type"] == "object"
    Draft202012Validator(schema).validate(result["structuredContent"])
    assert result.get("isError") is not True
    found: dict[str, Any] = result["structuredContent"]["taskgate_notice"]
    return found


@BOTH
async def test_the_notice_of_a_promoted_call_is_valid_by_the_output_schema(stateless: bool) -> None:
    async with typed(hanging={"tools/call"}) as server:
        settings = config(server, tasks={"promote_after_ms": 300})
        async with running_gateway(settings) as gateway, RawClient(gateway.url, stateless=stateless) as caller:
            schema = await listed_schema(caller)
            result = (await caller.call("s__report", {})).result
            notice = notice_in(schema, result)
            assert notice["task_id"] in result["content"][0]["text"] == notice["message"]
            found = await caller.call("get_task", {"task_id": notice["task_id"]})
            assert "working" in json.dumps(found.result)


@BOTH
async def test_the_notice_of_a_held_call_is_valid_by_the_output_schema(stateless: bool) -> None:
    async with typed() as server:
        rules = {"rules": [{"match": "report", "action": "approve"}]}
        settings = config(server, tasks={"promote_after_ms": 300}, governance=rules)
        async with running_gateway(settings) as gateway, RawClient(gateway.url, stateless=stateless) as caller:
            notice = notice_in(await listed_schema(caller), (await caller.call("s__report", {})).result)
            assert "approval" in notice["message"]
            assert notice["task_id"].startswith("tg_")
            assert server.count("tools/call") == 0


@BOTH
async def test_the_notice_of_a_truncated_result_is_valid_by_the_output_schema(stateless: bool) -> None:
    rows = {"rows": [{"text": "x" * 5000}]}
    async with typed() as server:
        server.answers["tools/call"] = answering(rows)
        limited = {"servers": {"s": {"url": server.url, "budgets": {"max_tool_output_bytes": 2000}}}}
        async with running_gateway(config(server) | limited) as gateway:
            async with RawClient(gateway.url, stateless=stateless) as caller:
                notice = notice_in(await listed_schema(caller), (await caller.call("s__report", {})).result)
                assert (notice["kind"], notice["limit_bytes"]) == ("cut", 2000)


@BOTH
async def test_the_tools_own_output_is_validated_by_its_own_schema(stateless: bool) -> None:
    async with typed() as server, running_gateway(config(server, validate="enforce")) as gateway:
        async with RawClient(gateway.url, stateless=stateless) as caller:
            schema = await listed_schema(caller)
            result = (await caller.call("s__report", {})).result
            assert result["structuredContent"] == ROWS
            Draft202012Validator(schema).validate(ROWS)
            # A tool cannot return the gateway's notice.
            server.answers["tools/call"] = answering({"taskgate_notice": {"kind": "task", "message": "ha"}})
            refused = (await caller.call("s__report", {})).result
            assert refused["isError"] is True
            assert "structuredContent" not in refused


async def test_the_output_schema_is_unchanged_if_no_notice_is_possible() -> None:
    async with typed() as server, running_gateway(config(server, tasks={"promote_after_ms": 0})) as gateway:
        async with RawClient(gateway.url) as caller:
            assert await listed_schema(caller) == SCHEMA


async def test_an_output_schema_that_only_stateless_callers_can_read_is_shown_to_them_alone() -> None:
    schemas = {"numbers": {"type": "array"}, "either": {"anyOf": [{"type": "object"}, {"type": "null"}]}}
    lists = {"tools/list": [tool(name, outputSchema=schema) for name, schema in schemas.items()]}
    async with changeable(stateless=True, lists=lists) as server:
        server.answers["tools/call"] = lambda _params: {"result": {"content": [], "structuredContent": [1, 2]}}
        async with running_gateway(config(server)) as gateway:
            async with RawClient(gateway.url) as old:
                assert [await listed_schema(old, f"s__{name}") for name in schemas] == [None, None]
                result = (await old.call("s__numbers", {})).result
                assert "structuredContent" not in result
                assert json.loads(result["content"][0]["text"]) == [1, 2]
                task = await old.call("s__numbers", {}, task={"ttl": 60000})
                ended = await old.request("tasks/result", {"taskId": task.result["task"]["taskId"]})
                assert json.loads(ended.result["content"][0]["text"]) == [1, 2]
                assert "structuredContent" not in ended.result
            async with RawClient(gateway.url, stateless=True) as new:
                schema = await listed_schema(new, "s__numbers")
                result = (await new.call("s__numbers", {})).result
                assert result["structuredContent"] == [1, 2]
                Draft202012Validator(schema).validate([1, 2])


async def test_a_call_with_task_does_not_change_the_listed_tools() -> None:
    rules = {"rules": [{"match": "report", "action": "approve"}]}
    async with typed() as server, running_gateway(config(server, governance=rules)) as gateway:
        async with RawClient(gateway.url) as caller:
            before = (await caller.request("tools/list")).result["tools"]
            made = await caller.call("s__report", {}, task={"ttl": 60000})
            assert made.result["task"]["taskId"]
            assert (await caller.request("tools/list")).result["tools"] == before
            # A plain call is still held for the caller, not refused because `task` is missing. Its key makes it a second call.
            async with asyncio.timeout(60):
                second = {"taskgate/idempotencyKey": "second"}
                plain = asyncio.create_task(caller.call("s__report", {}, _meta=second))
                while (await caller.request("tasks/list")).result["tasks"][1:] == []:
                    await asyncio.sleep(0.05)
                plain.cancel()


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_a_revision_without_tasks_has_no_task_methods_and_fields(version: str) -> None:
    async with typed() as server, running_gateway(config(server)) as gateway:
        async with RawClient(gateway.url, version=version) as caller:
            assert "taskSupport" not in json.dumps((await caller.request("tools/list")).result)
            for method in ("tasks/list", "tasks/get", "tasks/result", "tasks/cancel"):
                assert (await caller.request(method, {"taskId": "tg_x"})).error["code"] == -32601
        async with RawClient(gateway.url) as caller:
            assert "taskSupport" in json.dumps((await caller.request("tools/list")).result)
            assert (await caller.request("tasks/list")).result["tasks"] == []


async def test_a_plain_call_of_a_tool_that_requires_a_task_is_refused_in_strict_mode() -> None:
    lists = {"tools/list": [tool("must", execution={"taskSupport": "required"}), tool("may")]}
    capabilities: dict[str, Any] = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
    async with changeable(capabilities=capabilities, lists=lists) as server:
        async with running_gateway(config(server, tasks={"annotation_mode": "strict"})) as gateway:
            async with RawClient(gateway.url) as caller:
                tools = {entry["name"]: entry for entry in (await caller.request("tools/list")).result["tools"]}
                assert tools["s__must"]["execution"]["taskSupport"] == "required"
                refused = await caller.call("s__must", {})
                assert refused.error["data"]["error_type"] == "task_required"
                assert server.count("tools/call") == 0
                counted = (await caller.http.get(f"{gateway.base}/metrics")).text
                assert 'taskgate_task_validation_errors_total{error="required"} 1.0' in counted
                assert (await caller.call("s__may", {})).result["content"][0]["text"] == "ran may"
        async with running_gateway(config(server)) as gateway, RawClient(gateway.url) as caller:
            assert "error" not in (await caller.call("s__may", {})).reply
