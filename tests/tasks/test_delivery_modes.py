"""How a call that does not finish at once is returned to its caller: every delivery mode, with short waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.activity.callers import HttpSession, HttpStateless, call_json, http_session, http_stateless
from tests.chaos.crash_setup import Setup, running_setup
from tests.harness.replies import messages
from tests.tasks.test_task_methods import EXTENSION, TASKS, called, refused, until

from taskgate import clock

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
WAITS = {"grace_ms": 200, "promote_after_ms": 400, "hold_ms": 1200, "heartbeat_ms": 100, "clients": ["patient*"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with running_setup(tmp_path_factory.mktemp("ladder"), more={"tasks": WAITS}) as ready:
        yield ready


async def with_progress(setup: Setup, client: str, params: dict[str, Any]) -> tuple[dict[str, Any], list[float], float]:
    """One call with a progress token: its answer, the progress that came before it, and how long it took."""
    async with httpx2.AsyncClient(timeout=20) as http:
        caller = HttpSession(http, setup.gateway.url)
        info = {"name": client, "version": "1"}
        await caller.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
        await caller.notify("notifications/initialized")
        body = {
            "jsonrpc": "2.0",
            "id": 99,
            "method": "tools/call",
            "params": {**params, "_meta": {"progressToken": "t"}},
        }
        started, progress, answer = clock.monotonic(), [], {}
        async with http.stream("POST", setup.gateway.url, json=body, headers=caller.headers) as reply:
            async for message in messages(reply):
                if message.get("method") == "notifications/progress":
                    assert message["params"]["progressToken"] == "t"
                    progress.append(message["params"]["progress"])
                elif message.get("id") == 99:
                    answer = message["result"]
        return answer, progress, clock.monotonic() - started


def is_handed_over(answer: dict[str, Any]) -> bool:
    text = answer["content"][0]["text"]
    return "continues as task tg_" in text and "get_task_result" in text and answer["isError"] is False


async def test_a_stateless_caller_with_tasks_gets_quick_answers_inline_and_slow_ones_as_a_handle(setup: Setup) -> None:
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        quick = await caller.ask("tools/call", called("once", "quick"))
        assert quick["resultType"] == "complete"
        started = clock.monotonic()
        slow = await caller.ask("tools/call", called("once", "slow", seconds=0.8))
        assert (slow["resultType"], slow["status"]) == ("task", "working")
        assert 0.15 < clock.monotonic() - started < 0.7
        shown: dict[str, Any] = slow
        while shown["status"] == "working":
            shown = await caller.ask("tasks/get", {"taskId": slow["taskId"]})
        assert "slow ran" in shown["result"]["content"][0]["text"]
    assert setup.ledger.count("slow") == 1


async def test_an_upstream_task_becomes_a_handle_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, more = tmp_path_factory.mktemp("2026"), {"tasks": {**WAITS, "grace_ms": 5000}}
    async with running_setup(folder, generation="2026", more=more) as setup:
        async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
            started = clock.monotonic()
            handle = await caller.ask("tools/call", called("once_task", "theirs", seconds=0.6))
            assert (handle["resultType"], clock.monotonic() - started < 2) == ("task", True)
            assert handle["taskId"].startswith("tg_")
            shown: dict[str, Any] = handle
            while shown["status"] == "working":
                shown = await caller.ask("tasks/get", {"taskId": handle["taskId"]})
            assert "theirs ran" in shown["result"]["content"][0]["text"]


async def test_a_caller_that_sent_task_gets_a_handle_at_once(setup: Setup) -> None:
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        started = clock.monotonic()
        created = await caller.ask("tools/call", called("once", "at once", seconds=0.5, task={}))
        assert (created["task"]["status"], clock.monotonic() - started < 0.4) == ("working", True)
        assert created["taskId"] == created["task"]["taskId"]
        await until(lambda: setup.ledger.count("at once") == 1)


async def test_a_caller_without_tasks_or_progress_token_gets_a_text_notice(setup: Setup) -> None:
    async with http_session(setup.gateway) as caller:
        started = clock.monotonic()
        answer = await caller.ask("tools/call", called("once", "sentence", seconds=1.0))
        assert 0.3 < clock.monotonic() - started < 0.95
        assert is_handed_over(answer)


async def test_a_progress_token_gets_increasing_heartbeats(setup: Setup) -> None:
    answer, progress, took = await with_progress(setup, "bare", called("once", "beats", seconds=1.0))
    assert is_handed_over(answer)
    assert 0.3 < took < 0.95
    assert len(progress) >= 2
    assert progress == sorted(set(progress))


async def test_a_client_that_resets_its_timer_is_held_longer(setup: Setup) -> None:
    answer, progress, took = await with_progress(setup, "patient-client", called("once", "patient", seconds=0.8))
    assert "patient ran" in answer["content"][0]["text"]
    assert took > 0.7
    assert progress == sorted(set(progress))
    answer, _, took = await with_progress(setup, "patient-client", called("once", "too patient", seconds=3))
    assert is_handed_over(answer)
    assert 1.0 < took < 2.5


async def test_a_promoted_call_can_be_cancelled(setup: Setup) -> None:
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        before = setup.ledger.cancels()
        handle = await caller.ask("tools/call", called("once", "promoted then cancelled", seconds=30))
        await caller.ask("tasks/cancel", {"taskId": handle["taskId"]})
        shown = await caller.ask("tasks/get", {"taskId": handle["taskId"]})
        assert shown["status"] == "cancelled"
        assert "may have taken effect" in shown["statusMessage"]
        await until(lambda: setup.ledger.cancels() > before)


async def test_disconnecting_before_promotion_cancels_and_after_it_does_not(setup: Setup) -> None:
    async with httpx2.AsyncClient(timeout=20) as http:
        caller = HttpStateless(http, setup.gateway.url, EXTENSION, "hangs up")
        before = setup.ledger.cancels()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await caller.ask("tools/call", called("once", "hung up early", seconds=5))
        await until(lambda: setup.ledger.cancels() > before)
        handle = await caller.ask("tools/call", called("once", "hung up late", seconds=0.6))
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        shown: dict[str, Any] = handle
        while shown["status"] == "working":
            shown = await caller.ask("tasks/get", {"taskId": handle["taskId"]})
        assert shown["status"] == "completed"


async def test_a_keyed_call_of_a_stateless_caller_survives_a_lost_connection(setup: Setup) -> None:
    key = {"taskgate/idempotencyKey": "lost-connection"}
    async with httpx2.AsyncClient(timeout=20) as http:
        caller = Keyed(http, setup.gateway.url, EXTENSION, "keyed")
        caller.more = key
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await caller.ask("tools/call", called("once", "keyed", seconds=0.4))
        again = await caller.ask("tools/call", called("once", "keyed", seconds=0.4))
        if again["resultType"] == "task":
            while again["status"] == "working":
                again = await caller.ask("tasks/get", {"taskId": again["taskId"]})
            again = again["result"]
        assert "keyed ran" in again["content"][0]["text"]
    assert setup.ledger.count("keyed") == 1


class Keyed(HttpStateless):
    """Sends its key with every call."""

    more: dict[str, str]

    async def ask(self, method: str, params: Any = None) -> dict[str, Any]:
        self._http.headers["Idempotency-Key"] = self.more["taskgate/idempotencyKey"] if method == "tools/call" else ""
        if method != "tools/call":
            del self._http.headers["Idempotency-Key"]
        return await super().ask(method, params)


async def test_helper_tools_follow_a_promoted_call_to_its_end(setup: Setup) -> None:
    async with http_session(setup.gateway) as caller:
        await caller.ask("tools/call", called("read", "followed", seconds=0.9))
        (task,) = (await call_json(caller, "list_tasks"))["tasks"]
        result: dict[str, Any] = {}
        while "followed ran" not in result.get("text", ""):
            result = await call_json(caller, "get_task_result", task_id=task["task_id"])


async def test_a_tool_that_runs_as_a_task_only_is_a_handle_at_once_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    more = {"governance": {"force_required": ["once"]}, "tasks": {**WAITS, "grace_ms": 5000}}
    async with running_setup(tmp_path_factory.mktemp("forced"), more=more) as setup:
        async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
            handle = await caller.ask("tools/call", called("once", "forced", task={"ttl": "ignored"}))
            assert (handle["resultType"], handle["ttlMs"]) == ("task", 600_000)
        async with http_stateless(setup.gateway) as caller:
            error = await refused(caller, "tools/call", called("once", "cannot follow"))
            assert error["code"] == -32021
        await until(lambda: setup.ledger.count("forced") == 1)
        assert setup.ledger.count("cannot follow") == 0
