"""Arguments and output against the tool's schema: a precise error where it is enforced, a warning where it is not."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.features.wire_client import config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict() -> AsyncIterator[Gateway]:
    async with running_gateway(config(validate="enforce")) as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "path", "reason"),
    [
        ({}, "", '"city" is a required property'),
        ({"city": "Rome"}, "/city", 'the value is not one of "Paris", "Parma" or 2 other candidates'),
        ({"city": "Paris", "count": 0}, "/count", "the value is less than the minimum of 1"),
        ({"city": "Paris", "dry_run": "yes"}, "/dry_run", 'the value is not of type "boolean"'),
    ],
)
async def test_invalid_arguments_are_refused_with_place_and_reason(
    strict: Gateway, arguments: dict[str, Any], path: str, reason: str
) -> None:
    async with session(strict) as caller:
        problem = await refused(caller.call("weather", arguments))
        assert (problem.code, problem.kind) == (-32602, "invalid_arguments")
        assert problem.error["data"]["problems"] == [{"path": path, "reason": reason}]
        assert problem.error["data"]["gate"] == "validate"
        assert problem.error["data"]["executed"] == "no"
        assert all(seen["method"] != "tools/call" for seen in await caller.call_json("seen"))


async def test_invalid_arguments_of_a_stateless_caller_are_refused(strict: Gateway) -> None:
    async with stateless(strict) as caller:
        problem = await refused(caller.call("weather", {"city": 7}))
        assert (problem.code, problem.kind) == (-32602, "invalid_arguments")


async def test_arguments_are_validated_before_an_approval_is_requested() -> None:
    rules = {"rules": [{"match": "weather", "action": "approve", "approval": "ops"}]}
    approval = {"ops": {"channels": ["inbox"], "timeout": "1m"}}
    settings = config(validate="enforce", governance=rules, approval=approval)
    async with running_gateway(settings) as running, session(running) as caller:
        problem = await refused(caller.call("weather", {"city": "Rome"}))
        assert problem.kind == "invalid_arguments"


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("bomb", "it would take too long to apply"),
        ("remote", "it refers to something outside itself"),
    ],
)
async def test_a_hostile_schema_is_distinguished_from_invalid_arguments(strict: Gateway, tool: str, why: str) -> None:
    async with session(strict) as caller:
        problem = await refused(caller.call(tool, {"x": {}}))
        assert (problem.code, problem.kind) == (-32603, "unusable_schema")
        assert why in problem.message
        assert problem.error["data"]["executed"] == "no"


async def test_tool_whose_schema_is_nested_too_deep_is_omitted() -> None:
    settings = config()
    settings["servers"]["odd"]["args"].append("--deep")
    async with running_gateway(settings) as running, session(running) as caller:
        listed = [tool["name"] for tool in (await caller.ask("tools/list"))["tools"]]
        assert "weather" in listed
        assert "deep" not in listed
        assert "limits.json_depth" in running.log


async def test_invalid_output_is_an_error_result_with_executed_yes(strict: Gateway) -> None:
    async with session(strict) as caller:
        assert (await caller.call("measure", {"how": "good"}))["structuredContent"] == {"length": 3}
        for how, reason in (
            ("bad", '/length: the value is not of type "integer"'),
            ("none", "the whole value: there is none, though the tool declares an output schema"),
        ):
            result = await caller.call("measure", {"how": how})
            assert result["isError"] is True
            assert result["content"][0]["text"] == (
                f"The structured output of measure does not match its schema: {reason}."
            )
            assert result["_meta"]["taskgate/error"]["error_type"] == "invalid_output"
            assert result["_meta"]["taskgate/error"]["executed"] == "yes"


@pytest.mark.real_processes
async def test_output_with_an_unusable_schema_passes_with_a_warning_in_the_log(strict: Gateway) -> None:
    """The tool has run: its result is not withheld because of an invalid schema."""
    async with session(strict) as caller:
        assert (await caller.call("unmeasured", {"how": "bad"}))["structuredContent"] == {"length": "three"}
    received = [line for line in strict.log.splitlines() if "Tool unmeasured: output is not validated" in line]
    assert len(received) == 1
    assert "The tool's schema cannot be used: it would take too long to apply." in received[0]
    command = [sys.executable, "-m", "taskgate", "doctor", "-c", str(strict.config), "--json"]
    _code, out, err = await run_to_end(command, env={"TASKGATE_STATE_DIR": str(strict.state)})
    notes = {row["about"]: row for row in map(json.loads, out.splitlines())}
    assert notes["tool unmeasured of odd"]["detail"] == (
        "its output is not validated. The tool's schema cannot be used: it would take too long to apply."
    ), err
    assert notes["tool remote of odd"]["detail"] == (
        "its arguments cannot be validated, so it cannot be called. "
        "The tool's schema cannot be used: it refers to something outside itself."
    )


async def test_a_tasks_output_is_checked_too(strict: Gateway) -> None:
    async with session(strict, {"tasks": {}}) as caller:
        made = await caller.call("measure", {"how": "bad"}, task={})
        result = await caller.ask("tasks/result", {"taskId": made["task"]["taskId"]})
        assert result["isError"] is True
        assert result["_meta"]["taskgate/error"]["error_type"] == "invalid_output"


async def test_with_warn_invalid_values_pass_and_are_counted() -> None:
    async with running_gateway(config()) as running, session(running) as caller:
        assert (await caller.call_json("weather", {"city": "Rome"}))["arguments"] == {"city": "Rome"}
        assert (await caller.call("measure", {"how": "bad"}))["structuredContent"] == {"length": "three"}
        assert (await caller.call_json("bomb", {"x": 1}))["arguments"] == {"x": 1}
        assert running.log.count("does not match the schema") == 3
        await caller.call("weather", {"city": "Rome"})
        assert running.log.count("does not match the schema") == 3
        async with httpx2.AsyncClient() as http:
            shown = (await http.get(f"{running.base}/metrics")).text
        assert 'taskgate_schema_violations_total{error_type="invalid_arguments"} 2.0' in shown


async def test_with_off_nothing_is_validated() -> None:
    async with running_gateway(config(validate="off")) as running, session(running) as caller:
        assert (await caller.call_json("weather", {"city": "Rome"}))["arguments"] == {"city": "Rome"}
        assert "does not match" not in running.log
