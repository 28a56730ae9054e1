"""What other gateways on the same store did, carried out here: whoever waits looks again, runs stop or start, tasks are taken over.

There is nothing of this for a store that one gateway has to itself. Announcements only say what to look at; the store is the
truth, and what is waited for here is looked at every two seconds even if none comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from taskgate import clock
from taskgate.core.tasks.state import TaskState
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.shared_caches import SharedCaches
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recover import Recovery
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import CancelNote
from taskgate.ports.replicas import APPROVALS, DEAD, LISTS, POLL_S, TASKS, Wakeups
from taskgate.telemetry.logs import log

_PAUSE_S: Final = 0.5
_POLL_SHARE: Final = 10
"""Looking at everything takes at most one part in so many of the time."""
_LISTS_S: Final = 2.0


class OtherGateways:
    def __init__(
        self,
        wakeups: Wakeups | None,
        records: TaskRecords,
        runs: Runs,
        questions: TaskQuestions,
        approvals: Approvals,
        recovery: Recovery,
        caches: SharedCaches | None,
        catalogs: Catalogs,
    ) -> None:
        """`wakeups` and `caches` are None where there are no others."""
        self._wakeups = wakeups
        self._records = records
        self._runs = runs
        self._questions = questions
        self._approvals = approvals
        self._recovery = recovery
        self._caches = caches
        self._catalogs = catalogs
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self._wakeups is None:
            return
        todo: dict[str, Callable[[frozenset[str] | None], Awaitable[None]]]
        todo = {TASKS: self._tasks, APPROVALS: self._open_approvals, DEAD: self._dead, LISTS: self._lists}
        if self._caches is not None:
            todo |= {topic: self._loading(self._caches, topic) for topic in self._caches.topics}
        self._loops = [
            asyncio.get_running_loop().create_task(look_out(self._wakeups, topic, act)) for topic, act in todo.items()
        ]

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _tasks(self, names: frozenset[str] | None) -> None:
        """None: everything that anybody here waits for, or that runs here."""
        wanted = names if names is not None else self._records.changes.awaited | self._runs.running_ids
        for task_id in wanted:
            await self._look_at(task_id, announced=names is not None)

    async def _look_at(self, task_id: str, *, announced: bool) -> None:
        task = await self._records.store.get(task_id)
        if task is None:
            return
        await self._questions.look_again(task_id)
        if announced or task.state.is_terminal:
            self._records.changes.changed(task)
        if task.owner != self._records.store.ownership.owner:
            self._runs.let_go(task_id)
            return
        if task.state is TaskState.CANCELLED and (self._runs.is_running(task_id) or task.cancel_owed):
            await self._runs.cancel(task, CancelNote())
        else:
            self._approvals.task_changed_elsewhere(task)

    def _loading(self, caches: SharedCaches, topic: str) -> Callable[[frozenset[str] | None], Awaitable[None]]:
        async def load(names: frozenset[str] | None) -> None:
            await (caches.load(topic) if names is not None else caches.load_if_changed(topic))

        return load

    async def _open_approvals(self, names: frozenset[str] | None) -> None:
        for approval_id in names or ():
            self._approvals.changed_elsewhere(approval_id)

    async def _lists(self, names: frozenset[str] | None) -> None:
        """Ask those servers again, not more than once in a while: a server may give each of us another list every time."""
        for server in names or ():
            self._catalogs.changed(server)
        if names:
            await clock.sleep(_LISTS_S)

    async def _dead(self, names: frozenset[str] | None) -> None:
        if names is not None:
            await self._recovery.take_over_dead()
            await self._approvals.take_over()


async def look_out(wakeups: Wakeups, topic: str, act: Callable[[frozenset[str] | None], Awaitable[None]]) -> None:
    """Everything is looked at now and then even while hints keep coming: the one that was lost is not among them."""
    due = clock.monotonic() + POLL_S
    while True:
        names = await wakeups.wait(topic, max(0.0, due - clock.monotonic()))
        try:
            if names is not None:
                await act(names)
            if names is None or clock.monotonic() >= due:
                began = clock.monotonic()
                await act(None)
                took = clock.monotonic() - began
                due = clock.monotonic() + max(POLL_S, _POLL_SHARE * took)
        except Exception as fault:  # one round of a background loop: the next one looks again
            log.warning("could not look at what other gateways did", topic=topic, why=str(fault))
            await clock.sleep(_PAUSE_S)
