"""A server requests roots and its caller declared none: the request waits in the inbox as a form that its reader can answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.activity.callers import (
    Caller,
    call,
    call_json,
    http_session,
    http_stateless,
    read,
    stdio_session,
    task_result,
)
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import UPSTREAMS, Generation, Upstream, every_third
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]
ROOT = "file:///tmp/project"


def facade(server: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": {"peer": server},
        "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
        "tasks": {"promote_after_ms": 5000},
    }


def every(*transports: str) -> list[Any]:
    return every_third(
        pytest.param(u, t, id=f"{u.name} over {t}", marks=pytest.mark.peers(u.peer))
        for u in UPSTREAMS
        for t in transports
    )


async def asked_for_roots(caller: Caller) -> tuple[str, dict[str, Any]]:
    """Call the tool that asks for roots; the task it became, and the question."""
    await call_json(caller, "list_tools")
    promoted = read(await call(caller, "execute_tool", server="peer", tool="roots", timeout_ms=500))
    seen: dict[str, Any] = {"pending_client": {"elicitations": []}}
    while not seen["pending_client"]["elicitations"]:
        seen = await call_json(caller, "await_activity", timeout_ms=500)
    (brief,) = seen["pending_client"]["elicitations"]
    assert brief["message"].startswith("peer requests the folders")
    listed = await call_json(caller, "get_elicitations", server="peer")
    (question,) = listed["elicitations"]
    assert question["request_id"] == brief["requestId"]
    assert listed["pending_client_action"]["elicitations"] == [question]
    return promoted["proxy_task"]["task_id"], question


async def answered(caller: Caller) -> None:
    task_id, question = await asked_for_roots(caller)
    assert {"request_id", "server", "timestamp", "expires_at", "params"} <= set(question)
    assert question["params"]["requestedSchema"]["required"] == ["roots"]
    wrong = {"request_id": question["request_id"], "action": "accept", "content": {"roots": ["/tmp/project"]}}
    assert "file://" in (await call_json(caller, "respond_to_elicitation", **wrong))["text"]
    right = {**wrong, "content": {"roots": [ROOT]}}
    assert (await call_json(caller, "respond_to_elicitation", **right))["success"] is True
    assert ROOT in read(await task_result(caller, task_id))["text"]
    assert (await call_json(caller, "get_elicitations"))["elicitations"] == []


@pytest.mark.parametrize(("upstream", "transport"), every("http", "stdio"))
async def test_a_tools_only_caller_provides_its_roots_with_a_tool(
    upstream: Upstream, transport: str, tmp_path: Path
) -> None:
    async with upstream.http() as url:
        server = {"url": url} if transport == "http" else upstream.stdio()
        async with running_gateway(facade(server), tmp_path) as gateway:
            async with http_session(gateway) as stateful:
                await answered(stateful)
            async with http_stateless(gateway, client="tools-only") as stateless:
                await answered(stateless)


@pytest.mark.peers("mcp130")
async def test_a_tools_only_caller_over_stdio_provides_its_roots_with_a_tool(tmp_path: Path) -> None:
    Gateway(tmp_path, 0).write(facade(UPSTREAMS[0].stdio()))
    async with stdio_session(tmp_path) as caller:
        await answered(caller)


@pytest.mark.peers("mcp130")
async def test_a_caller_that_declared_roots_receives_the_request(tmp_path: Path) -> None:
    async with running_gateway(facade(UPSTREAMS[0].stdio()), tmp_path) as gateway:
        async with http_session(gateway, capabilities={"roots": {}}) as caller:
            caller.answers["roots/list"] = {"roots": [{"uri": ROOT}]}
            await call_json(caller, "list_tools")
            assert ROOT in (await call_json(caller, "execute_tool", server="peer", tool="roots"))["text"]
            assert [question["method"] for question in caller.asked] == ["roots/list"]


@pytest.mark.peers("mcp130")
@pytest.mark.parametrize("tool", ["respond_to_elicitation", "cancel_elicitation_request"])
async def test_declined_roots_request_is_an_error_for_the_server(tool: str, tmp_path: Path) -> None:
    async with running_gateway(facade(UPSTREAMS[0].stdio()), tmp_path) as gateway, http_session(gateway) as caller:
        task_id, question = await asked_for_roots(caller)
        more = {"action": "decline"} if tool == "respond_to_elicitation" else {"reason": "declined to provide roots"}
        assert (await call_json(caller, tool, request_id=question["request_id"], **more))["success"] is True
        result = read(await task_result(caller, task_id))
        assert result["isError"] is True
        assert "declined to provide roots" in str(result)


@pytest.mark.peers("mcp130")
async def test_the_operator_sees_and_answers_a_roots_request(tmp_path: Path) -> None:
    async with running_gateway(facade(UPSTREAMS[0].stdio()), tmp_path) as gateway, http_session(gateway) as caller:
        task_id, question = await asked_for_roots(caller)
        headers = {"Authorization": f"Bearer {(gateway.state / 'operator-token').read_text().strip()}"}
        async with httpx2.AsyncClient(timeout=120, headers=headers) as http:
            (row,) = (await http.get(f"{gateway.base}/api/questions")).json()
        assert (row["kind"], row["request_id"], row["server"]) == ("roots", question["request_id"], "peer")

        async def cli(*arguments: str) -> tuple[int, str, str]:
            command = [sys.executable, "-m", "taskgate", "questions", *arguments, "--gateway", gateway.base]
            return await run_to_end(command, {"TASKGATE_STATE_DIR": str(gateway.state)})

        code, out, _ = await cli("list")
        assert code == 0
        assert "(roots)" in out
        assert "roots: array (Folders or files, as file:// addresses)" in out
        code, _, err = await cli("answer", row["request_id"], '{"roots": ["C:/"]}')
        assert code != 0
        assert "file://" in err
        code, _, err = await cli("answer", row["request_id"], json.dumps({"roots": [{"uri": ROOT, "name": "P"}]}))
        assert code == 0, err
        assert ROOT in read(await task_result(caller, task_id))["text"]


@pytest.mark.parametrize(
    "upstream",
    [
        pytest.param(u, id=u.name, marks=pytest.mark.peers(u.peer))
        for u in UPSTREAMS
        if u.supports is Generation.STATELESS
    ],
)
async def test_a_roots_request_survives_a_kill_of_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    async with upstream.http() as url, running_gateway(facade({"url": url}), tmp_path) as gateway:
        async with http_stateless(gateway, client="ann") as caller:
            task_id, question = await asked_for_roots(caller)
            assert (await call_json(caller, "get_task", task_id=task_id))["task"]["waiting_for"] == "input"
        await gateway.kill()
        await gateway.start()
        async with http_stateless(gateway, client="ann") as caller:
            (again,) = (await call_json(caller, "get_elicitations"))["elicitations"]
            assert (again["request_id"], again["params"]) == (question["request_id"], question["params"])
            answer = {"request_id": again["request_id"], "action": "accept", "content": {"roots": [ROOT]}}
            assert (await call_json(caller, "respond_to_elicitation", **answer))["success"] is True
            result = read(await task_result(caller, task_id))
            assert ROOT in result.get("text", ""), result
