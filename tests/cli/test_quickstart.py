"""What a newcomer does first: serve without a configuration, start a task, and approve a call, as real commands."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taskgate.cli.exit_codes import ExitCode

pytestmark = [pytest.mark.timeout(90), pytest.mark.fresh_interpreter]
TIMEOUT_S = 120.0
COMMAND = (sys.executable, "-m", "taskgate")
TASK = re.compile(r"tg_\w{26}")


class FirstSteps:
    """A gateway that was just started, and commands of the same user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKGATE_")}
        self._variables = {**kept, "HOME": str(folder), "COLUMNS": "120"}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *COMMAND, *words, cwd=self._folder, env=self._variables, stdout=pipe, stderr=pipe
        )

    async def run(self, *words: str) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            process = await self.start(*words)
            output, noted = await process.communicate()
        assert process.returncode == ExitCode.OK, noted.decode()
        return output.decode()

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[str]:
        process = await self.start("serve", "--port", "0")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                assert process.stdout is not None
                expected_text = ""
                while "taskgate approvals login" not in expected_text:
                    expected_text += (await process.stdout.readline()).decode()
            address = re.search(r"serving at (http://[^/]+)/mcp", expected_text)
            assert address is not None, expected_text
            self._variables["TASKGATE_URL"] = address[1]
            yield expected_text
        finally:
            process.terminate()
            await process.communicate()


async def test_the_quickstart_commands_work(tmp_path: Path) -> None:
    person = FirstSteps(tmp_path)
    async with person.gateway() as output:
        assert '{"mcpServers": {"taskgate": {"type": "http", "url": "http://127.0.0.1:' in output
        await a_task_is_one_at_once(person)
        await a_dangerous_call_waits_for_the_same_person(person)


async def a_task_is_one_at_once(person: FirstSteps) -> None:
    task = (await person.run("call", "demo__slow_report", '{"seconds": 60}', "--task")).strip()
    assert TASK.fullmatch(task)
    assert task in await person.run("tasks", "list")
    assert "cancelled" in await person.run("tasks", "cancel", task)


async def a_dangerous_call_waits_for_the_same_person(person: FirstSteps) -> None:
    task = (await person.run("call", "demo__delete_file", '{"name": "old.log"}', "--task")).strip()
    assert "deletions need approval" in await person.run("approvals", "list")
    assert "old.log" in await person.run("call", "demo__list_files")
    await person.run("approvals", "approve", "ap_")
    assert "Deleted old.log." in await person.run("tasks", "result", task)
    assert "old.log" not in await person.run("call", "demo__list_files")
