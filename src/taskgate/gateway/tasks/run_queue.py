"""The limit on task calls that are open at one server, and the queue for it.

A call holds a slot from just before its intent is stored until it has a reply. It holds none while a person is asked between two
rounds or while the server's own task is followed, because it has no connection then. A free slot goes to the caller that has the
fewest. The number of waiting runs is limited only by the limits on open tasks: an accepted task is never refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskgate.core.fair_queue import FairQueue, QueuePlace
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    Noted,
)
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.caller_keys import fair_key_of
from taskgate.telemetry.metrics import Gauge

Note = Callable[[str, Noted], None]


class RunQueue:
    def __init__(self, plan: Live[Plan], note: Note) -> None:
        self._plan = plan
        self._note = note
        self._lines: dict[str, FairQueue] = {}

    def turn(self, task: Task) -> Turn:
        return Turn(self, task, self._note)

    def line(self, server: str) -> FairQueue:
        """The line of this server, as long as somebody is in it. A reload shows when the next one comes or goes."""
        slots = self._plan.value.limits.runs_per_server
        line = self._lines.get(server)
        if line is None:
            line = self._lines[server] = FairQueue(slots)
        elif line.slots != slots:
            grant(line.resize(slots))
        return line

    def left(self, server: str) -> None:
        line = self._lines.get(server)
        if line is not None and not line.running and not line.waiting:
            del self._lines[server]

    def gauges(self) -> list[Gauge]:
        return [
            Gauge(
                "taskgate_runs_sent",
                "Calls of tasks that a server has open.",
                ("server_id",),
                lambda: [((server,), line.running) for server, line in self._lines.items()],
            ),
            Gauge(
                "taskgate_runs_waiting",
                "Calls of tasks that wait in line for their server.",
                ("server_id",),
                lambda: [((server,), line.waiting) for server, line in self._lines.items()],
            ),
        ]


class Turn:
    """The turn of one run: taken and given back as often as it sends something."""

    __slots__ = ("_held", "_key", "_note", "_queue", "_server", "_task_id")

    def __init__(self, queue: RunQueue, task: Task, note: Note) -> None:
        self._queue = queue
        self._server = task.server
        self._task_id = task.id
        self._key = fair_key_of(task)
        self._note = note
        self._held = False

    async def take(self, patience_s: float | None) -> bool:
        """False if it did not come within this time."""
        if self._held:
            return True
        line = self._queue.line(self._server)
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if line.enter(self._key, ticket, limited=False) is QueuePlace.WAITS:
            text = f"Waiting in line for the server {self._server}, where {line.running} calls of tasks are running."
            self._note(self._task_id, Noted(text))
            if not await self._came(line, ticket, patience_s):
                return False
            self._note(self._task_id, Noted("Its turn has come; the call is being sent."))
        self._held = True
        return True

    async def _came(self, line: FairQueue, ticket: asyncio.Future[None], patience_s: float | None) -> bool:
        came = False
        try:
            async with asyncio.timeout(patience_s):
                await ticket
            came = True
        except TimeoutError:
            return False
        finally:
            if not came and not line.abandon(self._key, ticket):
                self._held = True
                self.give_back()
            self._queue.left(self._server)
        return True

    def take_at_once(self) -> None:
        """It has been sent already, as a plain call: it counts, even beyond the limit."""
        self._queue.line(self._server).run_at_once(self._key)
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            grant(self._queue.line(self._server).leave(self._key))
            self._queue.left(self._server)


def grant(tickets: list[object]) -> None:
    """Whose turn it is goes on."""
    for turn in tickets:
        assert isinstance(turn, asyncio.Future)
        if not turn.done():
            turn.set_result(None)
