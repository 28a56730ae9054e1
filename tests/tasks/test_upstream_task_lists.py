"""Tasks that an upstream keeps for a caller are listed after those of the gateway, and can be followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.activity.callers import http_session
from tests.chaos.crash_setup import running_setup
from tests.tasks.test_task_methods import TASKS, begun, refused

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]


async def test_an_upstreams_own_tasks_are_listed_once_and_followed_under_an_alias(tmp_path: Path) -> None:
    """tasks/list merge; task method routing for both ownership types."""
    async with running_setup(tmp_path, generation="own-tasks") as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            ours = await begun(caller, "once_task", "ours")
            await caller.ask("tasks/result", {"taskId": ours})
            rows = [row["taskId"] for row in (await caller.ask("tasks/list"))["tasks"]]
            assert rows[0] == ours
            (theirs,) = rows[1:]
            assert theirs.startswith("up_")
            again = [row["taskId"] for row in (await caller.ask("tasks/list"))["tasks"]]
            assert again == rows
            assert (await caller.ask("tasks/get", {"taskId": theirs}))["taskId"] == theirs
            result = await caller.ask("tasks/result", {"taskId": theirs})
            assert "kept ran" in result["content"][0]["text"]
            assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": theirs}
        async with http_session(setup.gateway, capabilities=TASKS) as other:
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert (await refused(other, method, {"taskId": theirs}))["data"]["error_type"] == "unknown_task"


async def test_an_upstream_that_cannot_list_makes_the_list_partial(tmp_path: Path) -> None:
    async with running_setup(tmp_path, generation="no-list") as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            ours = await begun(caller, "once_task", "ours")
            # Only upstreams with a link of the caller are listed, and now there is one.
            await caller.ask("tasks/result", {"taskId": ours})
            listed = await caller.ask("tasks/list")
            assert [row["taskId"] for row in listed["tasks"]] == [ours]
            (failed,) = listed["_meta"]["taskgate/partial"]
            assert failed["server"] == "books"
