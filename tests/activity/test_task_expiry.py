"""How long a promoted call is stored: always while it runs, then for its ttl, and then it is `expired`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import Caller, call, call_json, http_session, http_stateless, read, stdio_session
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]
TRAVELLER = str(Path(__file__).parent.parent / "chaos" / "crashing_gateway.py")
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
    "tasks": {"promote_after_ms": 5000, "tool_face_default_ttl_ms": 1000, "sweep_interval_ms": 3_600_000},
}
APPROVING: dict[str, Any] = {
    **CONFIG,
    "governance": {"rules": [{"match": "greet", "action": "approve", "approval": "ops"}]},
    "approval": {"ops": {"channels": ["inbox"], "timeout": "5s"}},
}


@asynccontextmanager
async def over_http(folder: Path, config: dict[str, Any]) -> AsyncIterator[Caller]:
    async with running_gateway(config, folder) as gateway, http_session(gateway) as caller:
        yield caller


@asynccontextmanager
async def over_stdio(folder: Path, config: dict[str, Any]) -> AsyncIterator[Caller]:
    Gateway(folder, 0).write(config)
    async with stdio_session(folder) as caller:
        yield caller


def every_transport(folder: Path, config: dict[str, Any], transport: str) -> AbstractAsyncContextManager[Caller]:
    return over_http(folder, config) if transport == "http" else over_stdio(folder, config)


async def promoted(caller: Caller, tool: str, **args: Any) -> str:
    seen = read(await call(caller, "execute_tool", server="files", tool=tool, args=args, timeout_ms=300))
    task_id: str = seen["proxy_task"]["task_id"]
    return task_id


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_task_that_runs_longer_than_its_ttl_is_kept(transport: str, tmp_path: Path) -> None:
    """TTL expiration never ends work that goes on."""
    async with every_transport(tmp_path, CONFIG, transport) as caller:
        task_id = await promoted(caller, "slow_report", seconds=8)
        await asyncio.sleep(1.2)  # past the ttl
        task = (await call_json(caller, "get_task", task_id=task_id))["task"]
        assert (task["status"], task["ttl"]) == ("working", 1000)
        async with asyncio.timeout(120):
            while "words in" not in (await call_json(caller, "get_task_result", task_id=task_id))["text"]:
                pass
        assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "completed"


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_call_that_was_not_approved_in_time_is_expired(transport: str, tmp_path: Path) -> None:
    async with every_transport(tmp_path, APPROVING, transport) as caller:
        task_id = await promoted(caller, "greet")
        kinds: list[str] = []
        async with asyncio.timeout(120):
            while "task_expired" not in kinds:
                seen = await call_json(caller, "await_activity", timeout_ms=3000)
                kinds += [event["type"] for group in seen["events"] for event in group["events"]]
        assert seen["pending_server"] == []
        assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "expired"
        result = await call_json(caller, "get_task_result", task_id=task_id)
        assert result["isError"] is True
        assert (result["task"]["status"], bool(result["error"])) == ("expired", True)
        rows = (await call_json(caller, "list_tasks", status="expired"))["tasks"]
        assert [row["task_id"] for row in rows] == [task_id]


async def test_a_task_past_its_ttl_is_expired_and_has_no_result(tmp_path: Path) -> None:
    """TTL expiration: marked `expired`, and no result any more."""
    config = {**CONFIG, "tasks": {**CONFIG["tasks"], "keep_result_ms": 8000}}
    async with running_gateway(config, tmp_path) as gateway, http_session(gateway) as caller:
        task_id = await promoted(caller, "slow_report", seconds=1)
        assert "words in" in (await call_json(caller, "get_task_result", task_id=task_id))["text"]
        task = {"status": "completed"}
        async with asyncio.timeout(120):
            while task["status"] == "completed":
                await asyncio.sleep(0.2)
                task = (await call_json(caller, "get_task", task_id=task_id))["task"]
        assert task["status"] == "expired"
        result = await call_json(caller, "get_task_result", task_id=task_id)
        assert result["isError"] is True
        assert "no longer kept" in result["error"]
        assert result["task"]["status"] == "expired"
        refused = await call_json(caller, "cancel_task", task_id=task_id)
        assert (refused["success"], "expired" in refused["message"]) == (False, True)
        rows = await call_json(caller, "list_tasks", include_completed=True)
        assert rows["tasks"] == []
        rows = await call_json(caller, "list_tasks", status="expired")
        assert [(row["task_id"], row["args"]) for row in rows["tasks"]] == [(task_id, {"seconds": 1})]


async def test_a_deleted_task_is_unknown_and_the_error_names_the_next_step(tmp_path: Path) -> None:
    """TTL expiration: cleaned up after a while."""
    config = {**CONFIG, "tasks": {**CONFIG["tasks"], "sweep_interval_ms": 1000}}
    async with running_gateway(config, tmp_path) as gateway:
        async with http_stateless(gateway, client="ann") as caller:
            task_id = await promoted(caller, "slow_report", seconds=1)
            assert "words in" in (await call_json(caller, "get_task_result", task_id=task_id))["text"]
        await gateway.stop()
        gateway.launcher = (TRAVELLER, "clock+3600")
        await gateway.start()
        async with http_stateless(gateway, client="ann") as caller, asyncio.timeout(120):
            kinds: list[str] = []
            while "task_expired" not in kinds:
                seen = await call_json(caller, "await_activity", timeout_ms=3000)
                kinds += [event["type"] for group in seen["events"] for event in group["events"]]
            assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "expired"
        await gateway.stop()
        gateway.launcher = (TRAVELLER, "clock+10800")
        await gateway.start()
        async with http_stateless(gateway, client="ann") as caller, asyncio.timeout(120):
            while "task" in (shown := await call_json(caller, "get_task", task_id=task_id)):
                assert shown["task"]["status"] == "expired"
                await asyncio.sleep(0.1)
            for tool in ("get_task", "get_task_result", "cancel_task"):
                gone = await call_json(caller, tool, task_id=task_id)
                assert (gone["isError"], "no longer kept" in gone["text"]) == (True, True)
            assert (await call_json(caller, "list_tasks", include_completed=True))["tasks"] == []
