"""Whether the caller of a task is present, so that an approval starts the run at once instead of at the caller's next poll.

A caller is present if it has an open reply (a held call, `tasks/result`, a tool that waits) or an open stream (its session's own,
a `subscriptions/listen` that names the task, a wait for events), or if it polled within three of its poll intervals. An idle
session is not enough. The approver's card, the reply to the approver and the start of the run all use `starts_on_approval`.

If several gateways share a store, each records there which callers of undecided tasks it sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskgate import clock
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.task_polls import MAX_REMEMBERED, PRESENT_INTERVALS, TaskPolls
from taskgate.ports.store import Store
from taskgate.store.operations.identity_records import FindIdentityRecord, IdentityRecord, KeepIdentityRecord

PRESENT: Final = "present"
"""The kind of record in which gateways publish which callers are present."""
AWAITS_RESULT: Final = b"result"
RECORD_S: Final = 15.0
"""How long a record of an open reply or stream is valid. It is renewed three times as often."""


class CallerPresence:
    def __init__(
        self,
        store: Store,
        followers: Followers,
        polls: TaskPolls,
        awaits_events: Callable[[ConversationKey], bool],
        events: EventHub,
    ) -> None:
        """`awaits_events`: whether a conversation has an open request that waits for events."""
        self._store = store
        self._followers = followers
        self._polls = polls
        self._awaits_events = awaits_events
        self._shared = store.shared is not None
        self._undecided: dict[str, Task] = {}
        """Tasks that wait for an approval, whose callers other gateways are informed of."""
        self._recorded_until: dict[str, float] = {}
        if self._shared:
            events.subscribe(TaskChanged, self._changed)

    async def starts_on_approval(self, task: Task) -> bool:
        """Whether an approval starts the run at once."""
        if task.run_on is RunOn.ONCE_ALLOWED:
            return True
        if task.run_on is RunOn.RESULT:
            return self._followers.is_awaited(task.id) or await self._is_present_elsewhere(task, AWAITS_RESULT)
        return self._is_here(task) or await self._is_present_elsewhere(task)

    def _is_here(self, task: Task) -> bool:
        return self._has_open_stream(task) or self._polls.was_recent(task.id)

    def _has_open_stream(self, task: Task) -> bool:
        followers = self._followers
        open_ones = followers.is_awaited(task.id) or followers.has_listen(task.id) or followers.has_stream(task)
        return open_ones or self._awaits_events(task.conversation_key)

    async def _is_present_elsewhere(self, task: Task, body: bytes | None = None) -> bool:
        """Whether another gateway has recorded the caller as present."""
        record = await self._store.ask(FindIdentityRecord(PRESENT, task.id)) if self._shared else None
        return record is not None and record.expires_ms > self._store.now_ms() and body in (None, record.body)

    def _changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.state is not TaskState.AWAITING_APPROVAL:
            self._undecided.pop(task.id, None)
        elif len(self._undecided) < MAX_REMEMBERED:
            self._undecided[task.id] = task

    def polled(self, task: Task, interval_s: float) -> None:
        """The caller polled here while its task waits for an approval."""
        if self._shared and task.state is TaskState.AWAITING_APPROVAL:
            self._record(task, PRESENT_INTERVALS * interval_s)

    def maintain(self) -> None:
        """Every second: record the callers whose replies and streams are open here."""
        now = clock.monotonic()
        self._recorded_until = {task_id: until for task_id, until in self._recorded_until.items() if until > now}
        for task in self._undecided.values():
            due = self._recorded_until.get(task.id, 0.0) - now < RECORD_S * 2 / 3
            if due and task.run_on is not RunOn.ONCE_ALLOWED and self._has_open_stream(task):
                self._recorded_until[task.id] = now + RECORD_S
                self._record(task, RECORD_S)

    def _record(self, task: Task, for_s: float) -> None:
        body = AWAITS_RESULT if self._followers.is_awaited(task.id) else b""
        until_ms = self._store.now_ms() + int(for_s * 1000)
        record = IdentityRecord(kind=PRESENT, name=task.id, principal="", expires_ms=until_ms, body=body)
        self._store.defer(KeepIdentityRecord(record))
