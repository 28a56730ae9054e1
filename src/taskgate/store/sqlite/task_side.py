"""The part of the SQLite store that keeps tasks (`ports.task_store`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.audit import Entry
from taskgate.core.tasks.birth import AlreadySent
from taskgate.core.tasks.happening import Dispatched, Happening, Noted, ResultCame
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import apply
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store_answers import (
    Accepting,
    Advancing,
    Change,
    Due,
    Intending,
    Swept,
    TaskPage,
    TaskQuestion,
)
from taskgate.ports.task_store import NO_LIMITS, AcceptLimits, LastLook
from taskgate.store.sqlite import task_operations, upkeep_operations
from taskgate.store.sqlite.foundation import Foundation
from taskgate.store.sqlite.latest_wins import LatestWins
from taskgate.store.sqlite.spill_files import SPILL_OVER
from taskgate.store.sqlite.writer import unavailable

_COUNT_GOOD_S: Final = 1.0


class TaskSide(Foundation):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # Progress that has not been written yet, by task; readers see it through `get`.
        self._notes: LatestWins[Noted] = LatestWins(self._ride_along, task_operations.write_note)
        self._open_count = (0, float("-inf"))

    async def accept(
        self,
        draft: Task,
        *,
        sent: AlreadySent | None = None,
        approval: ApprovalRequest | None = None,
        key: str | None = None,
        limits: AcceptLimits = NO_LIMITS,
        audit: Entry | None = None,
    ) -> Accepting:
        if sent is not None and approval is not None:
            raise ValueError("a call that is already out cannot wait for an approval")
        return await self._write(
            lambda tx: task_operations.accept(
                tx, draft, sent=sent, approval=approval, key=key, limits=limits, audit=audit
            ),
            lambda answer: (
                (lambda tx: task_operations.take_back(tx, draft, key)) if isinstance(answer, Change) else None
            ),
        )

    async def intend(
        self,
        task_id: str,
        *,
        byte_hash: str,
        upstream: str,
        message: str | None = None,
        look: LastLook,
        audit: Entry | None = None,
    ) -> Intending:
        return await self._write(
            lambda tx: task_operations.intend(
                tx, task_id, byte_hash=byte_hash, upstream=upstream, message=message, look=look, audit=audit
            )
        )

    async def advance(
        self,
        task_id: str,
        happening: Happening,
        *,
        questions: Sequence[TaskQuestion] = (),
        answers: Mapping[str, bytes] | None = None,
        audit: Entry | None = None,
    ) -> Advancing:
        if isinstance(happening, Dispatched):
            raise ValueError("a dispatch is written by `intend`, with its last look")
        spill = await self._spilled(task_id, happening)
        # If this wait is broken off, the commit may still come, so the file stays; if none comes, the sweep removes it.
        answer = await self._write(
            lambda tx: task_operations.advance(
                tx, task_id, happening, questions=questions, answers=answers, audit=audit, spill=spill
            )
        )
        if spill is not None and not isinstance(answer, Change):
            await asyncio.to_thread(self._spill_files.remove, [spill])
        return answer

    async def _spilled(self, task_id: str, happening: Happening) -> str | None:
        """Large result bytes become a synced file before the transaction that names it begins."""
        if not isinstance(happening, ResultCame) or len(happening.body) <= SPILL_OVER:
            return None
        try:
            return await asyncio.to_thread(self._spill_files.write, task_id, happening.body)
        except OSError as error:
            raise unavailable(error.strerror or "a result file could not be written") from error

    def note(self, task_id: str, noted: Noted) -> None:
        before = self._notes.peek(task_id) or noted
        merged = Noted(
            message=noted.message if noted.message is not None else before.message,
            progress=noted.progress if noted.progress is not None else before.progress,
            total=noted.total if noted.total is not None else before.total,
        )
        self._notes.put(task_id, merged)

    async def told_upstream(self, task_id: str) -> None:
        await self._write(lambda tx: task_operations.told_upstream(tx, task_id))

    async def get(self, task_id: str, *, also_gone: bool = False) -> Task | None:
        now = self.now_ms()
        task = self._reader.task(task_id, now, also_gone=also_gone)
        noted = self._notes.peek(task_id)
        if task is None or noted is None:
            return task
        shown = apply(task, noted, max(now, task.updated_ms))
        return replace(shown, revision=task.revision) if isinstance(shown, Task) else task

    async def result_bytes(self, task_id: str) -> bytes | None:
        found = self._reader.outcome(task_id, self.now_ms())
        if found is None:
            return None
        body, spill = found
        return body if spill is None else await asyncio.to_thread(self._spill_files.read, spill)

    async def page(
        self,
        caller: str | None,
        *,
        after: str | None = None,
        limit: int = 50,
        server: str | None = None,
        states: frozenset[TaskState] | None = None,
        also_gone: bool = False,
        arguments_up_to: int = 0,
    ) -> TaskPage:
        return self._reader.page(
            caller,
            after=after,
            limit=limit,
            server=server,
            states=states,
            also_gone=also_gone,
            arguments_up_to=arguments_up_to,
            now_ms=self.now_ms(),
        )

    async def task_of_key(self, principal: str, key: str) -> str | None:
        return self._reader.task_of_key(principal, key, self.now_ms() - task_operations.KEY_GOOD_MS)

    async def open_count(self, caller: str | None = None) -> int:
        if caller is not None:
            return self._reader.open_count(caller)
        # Asked for with every poll to set the pace of polling; a second old is good enough for that.
        count, at = self._open_count
        if clock.monotonic() - at > _COUNT_GOOD_S:
            count = self._reader.open_count(None)
            self._open_count = (count, clock.monotonic())
        return count

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        return self._reader.questions(task_id, answered=answered)

    async def open_questions(self, caller: str | None = None, limit: int = 200) -> tuple[tuple[str, TaskQuestion], ...]:
        return self._reader.open_questions(caller, limit)

    async def due(self, limit: int = 500) -> Due:
        return self._reader.due(self.now_ms(), limit)

    async def sweep(self) -> Swept:
        swept, spills = await self._write_or_fault(upkeep_operations.sweep)
        named = self._reader.spill_names()
        removed = await asyncio.to_thread(self._spill_files.remove, spills)
        removed += await asyncio.to_thread(self._spill_files.remove_orphans, named, clock.wall())
        return replace(swept, files=removed)

    async def claim(self) -> int:
        return await self._write_or_fault(upkeep_operations.claim)

    async def claimed(self, after: str = "", limit: int = 500) -> tuple[Task, ...]:
        return self._reader.claimed(self.ownership, after, limit)
