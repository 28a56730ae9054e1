"""Act on changes by other gateways on the same store: wake waiting requests, start or stop runs, take over tasks.

Announcements are hints to read the store. The store is authoritative, and everything awaited here is polled every two seconds
even if no announcement arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.tasks.state import TaskState
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.list_hints import ListHints
from taskgate.gateway.shared_caches import SharedCaches
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.topics import APPROVALS, DEAD, LISTS, MISSED, POLL_S, TASKS, Wakeups, read_list_hint
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.upkeep import ClaimedTasks
from taskgate.telemetry.logs import log

_CONTINUED: Final = (TaskState.RUNNING, TaskState.INPUT_REQUIRED)
_PAUSE_S: Final = 0.5
_POLL_SHARE: Final = 10
"""A full check takes at most this fraction (1/n) of the time."""


class OtherGateways:
    def __init__(
        self,
        *,
        wakeups: Wakeups | None,
        records: TaskRecords,
        runs: Runs,
        questions: TaskQuestions,
        approvals: Approvals,
        recovery: Recovery,
        caches: SharedCaches | None,
        catalogs: Catalogs,
    ) -> None:
        """`wakeups` and `caches` are None if no other gateway shares the store."""
        self._wakeups = wakeups
        self._records = records
        self._runs = runs
        self._questions = questions
        self._approvals = approvals
        self._recovery = recovery
        self._caches = caches
        self._catalogs = catalogs
        self._list_hints = ListHints(partial(catalogs.changed, elsewhere=True))
        self._loops: list[asyncio.Task[None]] = []
        self._missed_announcements = False
        """Whether a full check after missed announcements is still due: the first attempt may find the store unavailable."""

    def start(self) -> None:
        if self._wakeups is None:
            return
        todo: dict[str, Callable[[frozenset[str] | None], Awaitable[None]]]
        todo = {TASKS: self._tasks, APPROVALS: self._open_approvals, DEAD: self._dead, LISTS: self._lists}
        todo[MISSED] = self._missed
        if self._caches is not None:
            todo |= {topic: self._loading(self._caches, topic) for topic in self._caches.topics}
        self._loops = [
            asyncio.get_running_loop().create_task(follow_topic(self._wakeups, topic, act))
            for topic, act in todo.items()
        ]

    async def close(self) -> None:
        self._list_hints.close()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _tasks(self, names: frozenset[str] | None) -> None:
        """Check these tasks; None: all tasks that are awaited or run here."""
        task_ids = names if names is not None else self._records.changes.awaited | self._runs.running_ids
        for task_id in task_ids:
            await self._check_task(task_id, announced=names is not None)

    async def _check_task(self, task_id: str, *, announced: bool) -> None:
        task = await self._records.store.ask(FindTask(task_id))
        if task is None:
            return
        await self._questions.check_stored_answers(task_id)
        if announced or task.state.is_terminal:
            self._records.changes.changed(task)
        if task.owner != self._records.store.ownership.owner:
            self._runs.abandon(task_id)
            return
        if task.state is TaskState.CANCELLED and (self._runs.is_running(task_id) or task.cancel_unsent):
            await self._runs.cancel(task, CancelNote())
        elif task.script and task.state in _CONTINUED:
            # Another gateway could not load its snapshot and left it to this one. A script that runs here is not disturbed.
            await self._recovery.continue_handed_over(task_id)
        else:
            await self._approvals.task_changed_elsewhere(task)

    def _loading(self, caches: SharedCaches, topic: str) -> Callable[[frozenset[str] | None], Awaitable[None]]:
        async def load(names: frozenset[str] | None) -> None:
            await (caches.load(topic) if names is not None else caches.load_if_changed(topic))

        return load

    async def _open_approvals(self, names: frozenset[str] | None) -> None:
        for approval_id in names or ():
            self._approvals.changed_elsewhere(approval_id)

    async def _lists(self, names: frozenset[str] | None) -> None:
        changed: dict[str, set[EntryKind]] = {}
        for server, kind_name in map(read_list_hint, names or ()):
            changed.setdefault(server, set()).update(kind for kind in EntryKind if kind.value == kind_name)
        for server, kinds in changed.items():
            self._list_hints.add(server, kinds)

    async def _missed(self, names: frozenset[str] | None) -> None:
        """Announcements may have been missed: fetch the lists of every server again, notify callers that lists may have changed,
        and read the approvals that are awaited or were announced here and the state of this gateway's tasks."""
        self._missed_announcements = self._missed_announcements or names is not None
        if not self._missed_announcements:
            return
        await self._approvals.refresh()
        await self._decided_meanwhile()
        for server, kinds in self._catalogs.changeable().items():
            self._list_hints.add(server, kinds)
        self._missed_announcements = False

    async def _decided_meanwhile(self) -> None:
        """Check this gateway's tasks that others approved or cancelled; those that are not awaited here are not polled."""
        after = ""
        while tasks := await self._records.store.ask(ClaimedTasks(after)):
            for task in tasks:
                if task.state in (TaskState.APPROVED, TaskState.CANCELLED) or task.script:
                    await self._check_task(task.id, announced=False)
            after = tasks[-1].id

    async def _dead(self, names: frozenset[str] | None) -> None:
        if names is not None:
            await self._recovery.take_over_dead()
            await self._approvals.take_over()


async def follow_topic(wakeups: Wakeups, topic: str, act: Callable[[frozenset[str] | None], Awaitable[None]]) -> None:
    """Act on announcements of one topic, and check everything periodically, because announcements can be lost."""
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
        except Exception as fault:  # one round of a background loop: the next round retries
            log.warning("could not check for changes by other gateways", topic=topic, why=str(fault))
            await clock.sleep(_PAUSE_S)
