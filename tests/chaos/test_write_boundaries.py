"""A task whose gateway is killed right before and right after each of its writes. The ledger is the reference.

The short version stops one task at each write and kills the gateway once: many tasks, one crash. The
long version crashes at the exact write, one gateway after the other in front of the same upstream.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import Failed, http_session
from tests.chaos.crash_setup import Setup, running_setup
from tests.chaos.crashing_gateway import STOPPED

pytestmark = pytest.mark.slow
DONE, UNKNOWN = "completed", "failed"


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a life is cut off, and what must be true of it afterwards. No status: it never began."""

    name: str
    tool: str
    acknowledged: bool
    status: str | None
    executions: int

    def __str__(self) -> str:
        return f"{self.name} {self.tool}"


MOMENTS = [
    Moment("before-accept", "once", False, None, 0),
    Moment("after-accept", "once", False, DONE, 1),
    Moment("after-accept", "read", False, DONE, 1),
    Moment("before-intend", "once", True, DONE, 1),
    Moment("before-intend", "read", True, DONE, 1),
    Moment("after-intend", "once", True, UNKNOWN, 0),
    Moment("after-intend", "read", True, DONE, 1),
    Moment("after-intend", "repeatable", True, DONE, 1),
    Moment("after-intend", "keyed", True, DONE, 1),
    Moment("before-finish", "once", True, UNKNOWN, 1),
    Moment("before-finish", "read", True, DONE, 2),
    Moment("after-finish", "once", True, DONE, 1),
    Moment("after-finish", "read", True, DONE, 1),
    Moment("before-handle", "once_task", True, UNKNOWN, 1),
    Moment("before-handle", "read_task", True, DONE, 2),
    Moment("after-handle", "once_task", True, DONE, 1),
    Moment("after-handle", "read_task", True, DONE, 1),
]
REPORTED_S = 20.0


@dataclass(slots=True)
class InterruptedRuns:
    """The outcome of each call."""

    setup: Setup
    known: dict[Moment, str] = field(default_factory=dict)
    seen: dict[Moment, dict[str, Any]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def begun(self, moment: Moment, task_id: str | None) -> None:
        # An acknowledgement may be on its way when the process dies; only its absence before the write is certain.
        if task_id is not None and not moment.acknowledged:
            self.wrong.append(f"{moment}: acknowledged too early")
        found = task_id or self.stored(moment)
        if found is not None:
            self.known[moment] = found

    def stored(self, moment: Moment) -> str | None:
        """For a task whose acknowledgement was lost with the gateway: it is in the store."""
        (path,) = self.setup.gateway.state.glob("*.db")
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as reading:
            rows = reading.execute("SELECT task_id, arguments FROM task_calls").fetchall()
        return next((str(row[0]) for row in rows if json.loads(row[1])["call"] == str(moment)), None)

    async def check_outcome(self, moment: Moment) -> None:
        """Compare what the next gateway made of it with the table and with the ledger."""
        ended: dict[str, Any] = {"status": None}
        if moment in self.known:
            ended = await ending(self.setup, self.known[moment])
        self.seen[moment] = ended
        runs = self.setup.ledger.count(str(moment))
        if (ended["status"], runs) != (moment.status, moment.executions):
            self.wrong.append(f"{moment}: {runs} executions, {ended}")
        elif moment.status == UNKNOWN:
            honest = ended["message"].startswith("Outcome unknown. Taskgate sent")
            if not honest or ended["answer"]["error"]["data"]["executed"] != "maybe":
                self.wrong.append(f"{moment}: not said to be unknown: {ended}")

    async def read_again(self) -> None:
        """After another crash: an outcome stays as it is, and nothing runs again."""
        await self.setup.gateway.kill()
        await self.setup.gateway.start_again()
        for moment, seen in self.seen.items():
            if moment in self.known and await ending(self.setup, self.known[moment]) != seen:
                self.wrong.append(f"{moment}: its ending changed")
            if self.setup.ledger.count(str(moment)) != moment.executions:
                self.wrong.append(f"{moment}: it ran again later")


async def begin(setup: Setup, moment: Moment) -> str | None:
    """Call the tool as a task; the id if one was acknowledged before the gateway died."""
    try:
        async with http_session(setup.gateway) as caller:
            params = {"name": f"books__{moment.tool}", "arguments": {"call": str(moment)}, "task": {"ttl": 60_000}}
            created = await caller.ask("tools/call", params)
            return str(created["taskId"])
    except Exception as lost:
        if isinstance(lost, Failed):
            raise
        return None


async def ending(setup: Setup, task_id: str) -> dict[str, Any]:
    """How the task ended: its state, and its result or error."""
    async with http_session(setup.gateway) as caller:
        try:
            answer = await caller.ask("tasks/result", {"taskId": task_id})
        except Failed as failed:
            answer = {"error": failed.error}
        task = await caller.ask("tasks/get", {"taskId": task_id})
        return {"status": task["status"], "message": task.get("statusMessage", ""), "answer": answer}


async def all_stopped(setup: Setup) -> None:
    """Wait until every life has come to its moment."""
    async with asyncio.timeout(REPORTED_S):
        while any(f"{STOPPED} {moment}." not in setup.gateway.log for moment in MOMENTS):
            await asyncio.sleep(0.02)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_a_restart_after_a_crash_at_each_write_follows_the_recovery_table(
    tmp_path: Path, generation: str
) -> None:
    async with running_setup(tmp_path, "stop", generation) as setup:
        interrupted = InterruptedRuns(setup)
        calling = [asyncio.create_task(begin(setup, moment)) for moment in MOMENTS]
        await all_stopped(setup)
        await setup.gateway.kill()
        for moment, task_id in zip(MOMENTS, await asyncio.gather(*calling), strict=True):
            interrupted.begun(moment, task_id)
        await setup.gateway.start_again()
        for moment in MOMENTS:
            await interrupted.check_outcome(moment)
        await interrupted.read_again()
        assert interrupted.wrong == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_a_takeover_after_a_crash_at_each_write_follows_the_recovery_table(
    tmp_path: Path, generation: str
) -> None:
    async with running_setup(tmp_path, "crash", generation) as setup:
        interrupted = InterruptedRuns(setup)
        for moment in MOMENTS:
            task_id = await begin(setup, moment)
            await asyncio.wait_for(setup.gateway.crashed(), REPORTED_S)
            interrupted.begun(moment, task_id)
            await setup.gateway.start_again("crash")
            await interrupted.check_outcome(moment)
        await interrupted.read_again()
        assert interrupted.wrong == []
