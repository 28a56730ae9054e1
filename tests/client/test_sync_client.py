"""The same client for scripts without asyncio."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from taskgate.client import CannotConnect, DeadlineExceeded, Question, TaskStatus, accept
from taskgate.client.sync import connect

ASKER = [sys.executable, str(Path(__file__).parent / "servers" / "asking_server.py")]


def test_a_script_calls_tools_and_follows_tasks(liar: str) -> None:
    with connect(liar, generation="stateful", default_poll_interval=0.25) as session:
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
        assert again.cancel().status is TaskStatus.CANCELLED  # type: ignore[union-attr]


def test_callbacks_may_block() -> None:
    def slowly(question: Question) -> dict[str, Any]:
        time.sleep(0.05)
        return accept({"name": "Ann"})

    with connect(ASKER, generation="stateful", elicitation=slowly) as session:
        assert session.call_tool("ask_related").structured_content["saw"]["content"]["name"] == "Ann"


def test_errors_are_the_same_as_in_the_asynchronous_client(liar: str) -> None:
    with pytest.raises(CannotConnect), connect("http://127.0.0.1:1/mcp"):
        pass
    with connect(liar, generation="stateful") as session, pytest.raises(DeadlineExceeded):
        session.call_tool("late", {"seconds": 2}, timeout=0.1)
