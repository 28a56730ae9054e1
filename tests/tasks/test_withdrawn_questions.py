"""A question of a stateful upstream ends with the gateway that relayed it: it is withdrawn, as no answer could be delivered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import Failed, HttpSession, http_session, http_stateless
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import UPSTREAMS, Generation, Upstream
from tests.tasks.test_task_methods import EXTENSION

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]
NOTIFYING = str(Path(__file__).resolve().parent.parent / "peers" / "notifying_server.py")
ELICITS: dict[str, Any] = {"tasks": {}, "elicitation": {"form": {}}}
WORD = {"action": "accept", "content": {"word": "tea"}}


@dataclass(slots=True)
class Scene:
    gateway: Gateway
    notes: Path

    def noted(self, what: str) -> list[Any]:
        """The record of the upstream: its calls, and the answers it received."""
        lines = [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []
        return [line[what] for line in lines if what in line]

    async def crash(self) -> None:
        await self.gateway.kill()
        await self.gateway.start()


@asynccontextmanager
async def scene(folder: Path, tool_class: str) -> AsyncIterator[Scene]:
    notes = folder / "notes"
    server = {"command": sys.executable, "args": [NOTIFYING, str(notes)], "tools": {"ask": {"class": tool_class}}}
    async with running_gateway({"schema": 1, "servers": {"tell": server}}, folder) as gateway:
        yield Scene(gateway, notes)


async def begun(caller: HttpSession, tool: str) -> str:
    created = await caller.ask("tools/call", {"name": tool, "arguments": {}, "task": {"ttl": 60_000}})
    return str(created["taskId"])


async def shown(gateway: Gateway, task_id: str, *statuses: str) -> dict[str, Any]:
    """The task as a stateless caller sees it, once it has one of these states."""
    async with asyncio.timeout(20), http_stateless(gateway, capabilities=EXTENSION) as caller:
        while True:
            task = await caller.ask("tasks/get", {"taskId": task_id})
            if task["status"] in statuses:
                return task


async def test_a_once_call_ends_as_unknown_and_withdraws_its_questions(tmp_path: Path) -> None:
    async with scene(tmp_path, "once") as on:
        async with http_session(on.gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, "tell__ask")
        (key,) = (await shown(on.gateway, task_id, "input_required"))["inputRequests"]
        await on.crash()
        ended = await shown(on.gateway, task_id, "failed", "completed", "input_required")
        assert (ended["status"], "inputRequests" in ended) == ("failed", False), ended
        assert ended["error"]["data"]["executed"] == "maybe"
        async with http_stateless(on.gateway, capabilities=EXTENSION) as caller:
            # Too late is no error in this generation; it just changes nothing.
            await caller.ask("tasks/update", {"taskId": task_id, "inputResponses": {key: WORD}})
        async with http_session(on.gateway, capabilities=ELICITS) as caller:
            with pytest.raises(Failed) as failed:
                await caller.ask("tasks/result", {"taskId": task_id})
            assert failed.value.error["data"]["executed"] == "maybe"
            assert caller.asked == []
        assert (on.noted("call"), on.noted("answer")) == (["ask"], [])


async def test_a_repeated_call_sends_its_question_under_another_key(tmp_path: Path) -> None:
    """Bad input: an update with unknown keys; here with one that was known before the crash."""
    async with scene(tmp_path, "read") as on:
        async with http_session(on.gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, "tell__ask")
        (before,) = (await shown(on.gateway, task_id, "input_required"))["inputRequests"]
        await on.crash()
        (after,) = (await shown(on.gateway, task_id, "input_required", "failed"))["inputRequests"]
        assert after != before
        async with http_stateless(on.gateway, capabilities=EXTENSION) as caller:
            await caller.ask("tasks/update", {"taskId": task_id, "inputResponses": {before: WORD}})
            assert on.noted("answer") == [], "an answer to the question that died was given to the new one"
            await caller.ask("tasks/update", {"taskId": task_id, "inputResponses": {after: WORD}})
        ended = await shown(on.gateway, task_id, "completed", "failed")
        assert ended["result"]["content"][0]["text"] == "the word is tea"
        assert (on.noted("call"), on.noted("answer")) == (["ask", "ask"], [WORD])


@pytest.mark.parametrize(
    "upstream",
    [
        pytest.param(u, id=u.name, marks=pytest.mark.peers(u.peer))
        for u in UPSTREAMS
        if u.supports is Generation.STATEFUL and u.tasks
    ],
)
@pytest.mark.real_processes
async def test_a_servers_own_task_continues_without_its_withdrawn_question(upstream: Upstream, tmp_path: Path) -> None:
    async with (
        upstream.http() as url,
        running_gateway({"schema": 1, "servers": {"peer": {"url": url}}}, tmp_path) as gateway,
    ):
        async with http_session(gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, "peer__work_asking")
        await shown(gateway, task_id, "input_required")
        await gateway.kill()
        await gateway.start()
        # The server decides whether it asks again. The stored data of the first question is deleted in both cases.
        now = await shown(gateway, task_id, "working")
        async with http_stateless(gateway, capabilities=EXTENSION) as caller:
            await caller.ask("tasks/cancel", {"taskId": task_id})
        assert (now["status"], now.get("inputRequests")) == ("working", None)
        assert (await shown(gateway, task_id, "cancelled"))["status"] == "cancelled"
