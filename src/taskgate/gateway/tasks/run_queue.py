"""The limit on task calls that are open at one server, and the queue for it.

A call holds a slot from just before its intent is stored until it has a reply. It holds none while it waits for a person's answer
between two rounds or follows the server's own task, because it uses no connection then. A free slot goes to the caller that has
the fewest. The number of waiting runs is limited only by the limits on open tasks: an accepted task is never refused here.
"""

from __future__ import annotations

import asyncio

from taskgate.core.fair_queue import FairQueue, QueuePlace
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    Noted,
)
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.caller_keys import fair_key_of
from taskgate.ports.store import Store
from taskgate.store.operations.tasks import NoteProgress
from taskgate.telemetry.metrics import Gauge


class RunQueue:
    def __init__(self, plan: Live[Plan], store: Store) -> None:
        self._plan = plan
        self._store = store
        self._queues: dict[str, FairQueue] = {}

    def slot(self, task: Task) -> RunSlot:
        return RunSlot(self, task, self._store)

    def queue(self, server: str) -> FairQueue:
        """The queue of this server. A changed limit is applied with the next entry or exit."""
        slots = self._plan.value.limits.runs_per_server
        queue = self._queues.get(server)
        if queue is None:
            queue = self._queues[server] = FairQueue(slots)
        elif queue.slots != slots:
            grant(queue.resize(slots))
        return queue

    def remove_if_empty(self, server: str) -> None:
        queue = self._queues.get(server)
        if queue is not None and not queue.running and not queue.waiting:
            del self._queues[server]

    def gauges(self) -> list[Gauge]:
        return [
            Gauge(
                "taskgate_runs_sent",
                "Calls of tasks that a server has open.",
                ("server_id",),
                lambda: [((server,), queue.running) for server, queue in self._queues.items()],
            ),
            Gauge(
                "taskgate_runs_waiting",
                "Calls of tasks that wait for a slot of their server.",
                ("server_id",),
                lambda: [((server,), queue.waiting) for server, queue in self._queues.items()],
            ),
        ]


class RunSlot:
    """The slot of one run, taken and given back as often as it sends something."""

    __slots__ = ("_held", "_key", "_queue", "_server", "_store", "_task_id")

    def __init__(self, queue: RunQueue, task: Task, store: Store) -> None:
        self._queue = queue
        self._server = task.server
        self._task_id = task.id
        self._key = fair_key_of(task)
        self._store = store
        self._held = False

    async def take(self, timeout_s: float | None) -> bool:
        """Wait for the slot. Return False after `timeout_s`."""
        if self._held:
            return True
        queue = self._queue.queue(self._server)
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if queue.enter(self._key, ticket, limited=False) is QueuePlace.WAITS:
            text = f"Waiting for a slot of the server {self._server}: {queue.running} task calls are running."
            self._store.defer(NoteProgress(self._task_id, Noted(text)))
            if not await self._wait_for(queue, ticket, timeout_s):
                return False
            self._store.defer(NoteProgress(self._task_id, Noted("Got a slot; the call is being sent.")))
        self._held = True
        return True

    async def _wait_for(self, queue: FairQueue, ticket: asyncio.Future[None], timeout_s: float | None) -> bool:
        granted = False
        try:
            async with asyncio.timeout(timeout_s):
                await ticket
            granted = True
        except TimeoutError:
            return False
        finally:
            if not granted and not queue.abandon(self._key, ticket):
                self._held = True
                self.give_back()
            self._queue.remove_if_empty(self._server)
        return True

    def take_beyond_limit(self) -> None:
        """Count a call that was sent already as a plain call, even beyond the limit."""
        self._queue.queue(self._server).run_at_once(self._key)
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            grant(self._queue.queue(self._server).leave(self._key))
            self._queue.remove_if_empty(self._server)


def grant(tickets: list[object]) -> None:
    """Wake the runs that got a slot."""
    for ticket in tickets:
        assert isinstance(ticket, asyncio.Future)
        if not ticket.done():
            ticket.set_result(None)
