"""A question that comes while its call is just being written down as a task belongs to the task, not to the caller with the handle.

The gateway runs under strace, which makes every commit take a while: so the moment is long enough to be met.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port, listening, running, start, until_ready
from tests.harness.raw_client import RawClient

from taskgate.store.sqlite.store import open_store

pytestmark = pytest.mark.timeout(90)
MIRROR = Path(__file__).parent.parent / "peers" / "mirror_server.py"
NOTIFYING = Path(__file__).parent.parent / "peers" / "notifying_server.py"
# Pinned, because looking for another generation takes a while in the first call, and these tests are about moments.
ASKING = {"command": sys.executable, "args": [str(NOTIFYING)], "generation": "2025-11-25"}
GRACE_S, COMMIT_S = 0.4, 0.7
AROUND_S = (-0.3, -0.015, -0.01, -0.005, -0.002, 0.0, 0.01, 0.3)
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}


async def started_on_a_slow_disk(gateway: Gateway) -> None:
    # Made beforehand: the many syncs of a new store would each take as long as a commit.
    await open_store(gateway.state / "taskgate.db").close()
    slow = f"inject=fdatasync:delay_enter={int(COMMIT_S * 1_000_000)}"
    strace: list[str | Path] = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", slow]
    serve: list[str | Path] = [
        sys.executable,
        "-m",
        "taskgate",
        "serve",
        "-c",
        gateway.config,
        "--port",
        str(gateway.port),
    ]
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


@asynccontextmanager
async def caller_on_a_slow_disk(folder: Path, **servers: dict[str, Any]) -> AsyncIterator[RawClient]:
    """A stateless caller with tasks, of a gateway whose commits take long. It has seen the tools already."""
    gateway = Gateway(folder, free_port())
    gateway.state.mkdir()
    gateway.write({"schema": 1, "servers": servers, "tasks": {"grace_ms": int(GRACE_S * 1000)}})
    try:
        await started_on_a_slow_disk(gateway)
        async with RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller:
            wanted, listed = {f"{server}__ask" for server in servers}, set[str]()
            async with asyncio.timeout(60):
                while not wanted <= listed:
                    listed = {tool["name"] for tool in (await caller.request("tools/list")).result["tools"]}
            yield caller
    finally:
        if gateway.program is not None:
            # A proper end would write, and slowly.
            await gateway.program.end(signal.SIGKILL)


async def answered_as_a_task(caller: RawClient, handle: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Follow a handle to the task's question, answer it, and give the task's end."""
    asked = await polled(caller, handle["taskId"], "input_required")
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": content}}
    await caller.request("tasks/update", {"taskId": handle["taskId"], "inputResponses": answers})
    return await polled(caller, handle["taskId"], "completed")


async def test_a_question_that_comes_during_promotion_is_asked_by_the_task(tmp_path: Path) -> None:
    port = free_port()
    async with (
        running([sys.executable, MIRROR, "stateless", str(port)], listening(port)),
        caller_on_a_slow_disk(tmp_path, new={"url": f"http://127.0.0.1:{port}/mcp"}) as caller,
    ):
        handle = (await caller.call("new__ask", {"value": GRACE_S + COMMIT_S / 3})).result
        assert handle["resultType"] == "task", f"not promoted: {handle}"
        ended = await answered_as_a_task(caller, handle, {})
        assert ended["result"]["seen"]["requestState"] == "mirror"


async def test_a_stateful_servers_question_during_promotion_is_asked_by_the_task(tmp_path: Path) -> None:
    async with caller_on_a_slow_disk(tmp_path, old=ASKING) as caller:
        handle = (await caller.call("old__ask", {"after": GRACE_S + COMMIT_S / 3})).result
        assert handle["resultType"] == "task", f"not promoted: {handle}"
        ended = await answered_as_a_task(caller, handle, {"word": "tea"})
        assert ended["result"]["content"][0]["text"] == "the word is tea"


async def test_questions_during_promotion_are_sent_once_and_answered(tmp_path: Path) -> None:
    """Some arrive just before the call becomes a task, some just after: none is lost, whichever side sent them."""

    async def one(caller: RawClient, number: int) -> str:
        call, word = {"after": GRACE_S + AROUND_S[number]}, {"word": f"w{number}"}
        first = (await caller.call(f"old{number}__ask", call)).result
        if first["resultType"] == "task":
            ended = (await answered_as_a_task(caller, first, word))["result"]
        else:
            (key,) = first["inputRequests"]
            answers = {key: {"action": "accept", "content": word}}
            state = {"inputResponses": answers, "requestState": first["requestState"]}
            ended = (await caller.call(f"old{number}__ask", call, **state)).result
        assert ended["content"][0]["text"] == f"the word is w{number}"
        return str(first["resultType"])

    # One process each: on a pipe that several calls share, a question cannot be assigned to one of them.
    servers = {f"old{number}": ASKING for number in range(len(AROUND_S))}
    async with caller_on_a_slow_disk(tmp_path, **servers) as caller:
        # Where all of a round came on one side of the moment, because a program was late, there is another round.
        ways: set[str] = set()
        while ways != {"task", "input_required"}:
            ways.update(await asyncio.gather(*(one(caller, number) for number in range(len(AROUND_S)))))
