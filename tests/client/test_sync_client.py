"""The same client for scripts without asyncio."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.harness.narrow import present

from taskgate.client import CannotConnect, DeadlineExceeded, Question, TaskCancelled, TaskStatus, ToolResult, accept
from taskgate.client.sync import TaskHandle, connect, gather

ASKER = [sys.executable, str(Path(__file__).parent / "servers" / "asking_server.py")]


def test_a_script_calls_tools_and_follows_tasks(faulty: str) -> None:
    with connect(faulty, generation="stateful", default_poll_interval=0.25) as session:
        assert session.server_info["name"] == "liar"
        assert session.supports_tasks
        assert "honest" in {tool.name for tool in session.list_tools()}
        assert session.call_tool("echo", {"text": "hi"}).text == "hi"
        handle = session.call_tool_as_task("progressing")
        assert [update.status for update in handle.updates()][-1] is TaskStatus.COMPLETED
        assert handle.result(10).text == "true result"
        again = session.call_tool_as_task("forever")
        assert session.get_task(str(again.task_id)).status is TaskStatus.WORKING
        assert again.task_id in {task.task_id for task in session.list_tasks()}
        assert present(again.cancel()).status is TaskStatus.CANCELLED


def test_callbacks_may_block() -> None:
    def slowly(question: Question) -> dict[str, Any]:
        time.sleep(0.05)
        return accept({"name": "Ann"})

    with connect(ASKER, generation="stateful", elicitation=slowly) as session:
        assert session.call_tool("ask_related").structured_content["saw"]["content"]["name"] == "Ann"


def test_errors_are_the_same_as_in_the_asynchronous_client(faulty: str) -> None:
    with pytest.raises(CannotConnect), connect("http://127.0.0.1:1/mcp"):
        pass
    with connect(faulty, generation="stateful") as session, pytest.raises(DeadlineExceeded):
        session.call_tool("late", {"seconds": 2}, timeout=0.1)


def test_gather_returns_results_in_order_and_starts_at_most_limit_tasks(faulty: str) -> None:
    open_now, maximum = 0, 0
    with connect(faulty, generation="stateful", default_poll_interval=0.25) as session:

        def started() -> Iterator[TaskHandle]:
            nonlocal open_now, maximum
            for _ in range(5):
                open_now += 1
                maximum = max(maximum, open_now)
                handle = session.call_tool_as_task("progressing")
                yield handle
                open_now -= handle.status is TaskStatus.COMPLETED

        results = gather(started(), limit=1)
        assert [result.text for result in results] == ["true result"] * 5
        # With a limit of one, the next task is created after the result of the one before.
        assert maximum == 1
        calls = [partial(session.call_tool_as_task, tool) for tool in ("progressing", "honest", "progressing")]
        assert [result.text for result in gather(calls, limit=3, timeout=20)] == ["true result"] * 3
        with pytest.raises(ValueError, match="limit"):
            gather(calls, limit=0)


def test_gather_calls_functions_concurrently(faulty: str) -> None:
    together = threading.Barrier(3, timeout=60)
    with connect(faulty, generation="stateful", default_poll_interval=0.25) as session:

        def meet() -> TaskHandle:
            together.wait()
            return session.call_tool_as_task("honest")

        assert len(gather([meet, meet, meet], limit=3)) == 3


def test_gather_raises_the_first_error_or_returns_errors_in_their_place(faulty: str) -> None:
    with connect(faulty, generation="stateful", default_poll_interval=0.25) as session:
        names = ("honest", "cancelled", "honest")
        calls = [partial(session.call_tool_as_task, name) for name in names]
        with pytest.raises(TaskCancelled):
            gather(calls, limit=1)
        first, failed, last = gather(calls, limit=2, return_errors=True)
        assert isinstance(failed, TaskCancelled)
        assert isinstance(first, ToolResult)
        assert isinstance(last, ToolResult)
