"""A question that comes while its call is just being written down as a task belongs to the task, not to the caller with the handle.

The gateway runs under strace, which makes every commit take a while: so the moment is long enough to be met.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port, listening, running, start, until_ready
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.timeout(90)
MIRROR = Path(__file__).parent.parent / "peers" / "mirror_server.py"
GRACE_S, COMMIT_S = 0.4, 1.0
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}


async def started_on_a_slow_disk(gateway: Gateway) -> None:
    slow = f"inject=fdatasync:delay_enter={int(COMMIT_S * 1_000_000)}"
    strace = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", slow]
    serve = [sys.executable, "-m", "taskgate", "serve", "-c", gateway.config, "--port", str(gateway.port)]
    env = {"TASKGATE_STATE_DIR": str(gateway.state)}
    gateway.program = await start([*strace, *serve], env, gateway.folder / "gateway.log")
    await until_ready(gateway.program, gateway.is_ready)


async def polled(caller: RawClient, task_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while True:
        task = (await caller.request("tasks/get", {"taskId": task_id})).result
        if task["status"] == status:
            return task
        assert time.monotonic() < deadline, task
        await asyncio.sleep(0.2)


async def test_a_question_that_comes_during_promotion_is_asked_by_the_task(tmp_path: Path) -> None:
    port = free_port()
    gateway = Gateway(tmp_path, free_port())
    gateway.state.mkdir()
    servers = {"new": {"url": f"http://127.0.0.1:{port}/mcp"}}
    gateway.write({"schema": 1, "servers": servers, "tasks": {"grace_ms": int(GRACE_S * 1000)}})
    async with running([sys.executable, MIRROR, "stateless", str(port)], listening(port)):
        try:
            await started_on_a_slow_disk(gateway)
            async with RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller:
                await caller.request("tools/list")
                handle = (await caller.call("new__ask", {"value": GRACE_S + COMMIT_S / 3})).result
                assert handle["resultType"] == "task", f"not promoted: {handle}"
                asked = await polled(caller, handle["taskId"], "input_required")
                assert list(asked["inputRequests"]) == ["sure"]
                answers = {"sure": {"action": "accept", "content": {}}}
                await caller.request("tasks/update", {"taskId": handle["taskId"], "inputResponses": answers})
                ended = await polled(caller, handle["taskId"], "completed")
                assert ended["result"]["seen"]["requestState"] == "mirror"
        finally:
            if gateway.program is not None:
                await gateway.program.end()
