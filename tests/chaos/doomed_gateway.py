"""Starts the gateway so that it dies, or misbehaves, at one exact write of a task's life. The product knows nothing of this.

doomed_gateway.py MOMENT ARGUMENTS... runs `taskgate ARGUMENTS...`. MOMENT is `before-accept`, `after-intend` and so on: the
process ends by SIGKILL right there, before the write began or after it was synced. `clock+7200` lives two hours later than
everybody else. `no-intent` and `early-reply` are sabotaged
builds, for showing that the checker notices: the first never writes the intent, the second answers before the task is durable.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from taskgate.cli.main import main
from taskgate.core.tasks.birth import born
from taskgate.core.tasks.happening import Cancelled, ContactLost, ErrorCame, ResultCame, UpstreamTaskKnown
from taskgate.core.tasks.state import TaskState
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.sqlite.approval_side import ApprovalSide
from taskgate.store.sqlite.task_side import TaskSide

FINISH = (ResultCame, ErrorCame, ContactLost)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doomed(moment: str, name: str, write: Callable[..., Awaitable[Any]], applies: Callable[..., bool]) -> Any:
    """The same write, with an end of the world beside it."""

    async def around(self: Any, *arguments: Any, **options: Any) -> Any:
        mine = applies(*arguments)
        if mine and moment == f"before-{name}":
            die()
        answer = await write(self, *arguments, **options)
        if mine and moment == f"after-{name}":
            die()
        return answer

    return around


def prepare(moment: str) -> None:
    TaskSide.accept = doomed(moment, "accept", TaskSide.accept, lambda *_: True)  # type: ignore[method-assign]
    TaskSide.intend = doomed(moment, "intend", TaskSide.intend, lambda *_: True)  # type: ignore[method-assign]
    for name, kinds in (("handle", UpstreamTaskKnown), ("finish", FINISH), ("cancel", Cancelled)):
        applies = _is_a(kinds)
        TaskSide.advance = doomed(moment, name, TaskSide.advance, applies)  # type: ignore[method-assign]
    ApprovalSide.change_held = doomed(moment, "decide", ApprovalSide.change_held, lambda *_: True)  # type: ignore[method-assign]


def _is_a(kinds: Any) -> Callable[..., bool]:
    return lambda _task_id, happening: isinstance(happening, kinds)


async def intend_without_writing(self: Any, task_id: str, **_options: Any) -> Any:
    task = await self.get(task_id)
    if task is None or task.state.is_terminal:
        return await REAL_INTEND(self, task_id, **_options)
    return Intended(replace(task, state=TaskState.RUNNING))


async def accept_before_writing(self: Any, draft: Any, **options: Any) -> Any:
    """Promise first, write later: what a careless store would do."""
    if options.get("sent") is not None or options.get("key") is not None:
        return await REAL_ACCEPT(self, draft, **options)

    async def later() -> None:
        await asyncio.sleep(0.2)
        await REAL_ACCEPT(self, draft, **options)

    LATE.append(asyncio.create_task(later()))
    owner = self.ownership
    return Change(born(draft, None, now_ms=self.now_ms(), owner=owner.owner, fence=owner.fence))


def travel(seconds: int) -> None:
    real = time.time_ns
    time.time_ns = lambda: real() + seconds * 1_000_000_000  # type: ignore[assignment]


LATE: list[asyncio.Task[None]] = []
REAL_INTEND = TaskSide.intend
REAL_ACCEPT = TaskSide.accept

if __name__ == "__main__":
    wanted = sys.argv[1]
    if wanted == "no-intent":
        TaskSide.intend = intend_without_writing  # type: ignore[method-assign]
    elif wanted == "early-reply":
        TaskSide.accept = accept_before_writing  # type: ignore[method-assign]
    elif wanted.startswith("clock+"):
        travel(int(wanted.removeprefix("clock+")))
    else:
        prepare(wanted)
    sys.argv = ["taskgate", *sys.argv[2:]]
    main()
