"""Starts the gateway so that it crashes, stops or misbehaves at exact writes of a task.

`crashing_gateway.py HOW ARGUMENTS...` runs `taskgate ARGUMENTS...`. The argument `call` of a call names the moment: it begins with
`before-accept`, `after-intend` and so on. With `crash` the process ends by SIGKILL there, before the write began or after it
was synced. With `stop` only that task stops, which is reported on stderr, so that one kill interrupts many tasks, each at its own
moment. Tasks that an earlier process accepted are not affected.

`before-write+7` and `after-write+7` end the process at that write of a script or of a call, whichever comes first.

`clock+7200` sets the clock two hours ahead. `no-intent` and `early-reply+SECONDS` are sabotaged builds, which show that the checker
detects them: the first never writes the intent, the second replies before the task is durable. With `disk-full` no file may exceed
a megabyte; that limit can be lifted from outside.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from taskgate import clock
from taskgate.cli.main import main
from taskgate.core.tasks.origin import create
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import ContactLost, ErrorReceived, ResultReceived, UpstreamTaskKnown
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.views.approvals import ApprovalView
from taskgate.store.views.scripts import ScriptView
from taskgate.store.views.tasks import TaskView

FINISH = (ResultReceived, ErrorReceived, ContactLost)
STOPPED = "stopped at"
SMALL_BYTES = 1 << 20


async def crash(_moment: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def stop(moment: str) -> None:
    print(f"{STOPPED} {moment}.", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


def with_crash(name: str, write: Callable[..., Awaitable[Any]], task_in: Callable[..., str | None], end: Any) -> Any:
    """The same write, with the crash before or after it for the selected tasks."""

    async def around(self: Any, *arguments: Any, **options: Any) -> Any:
        call = CALLS.get(task_in(*arguments) or "", "")
        if call.startswith(f"before-{name} "):
            await end(call)
        answer = await write(self, *arguments, **options)
        if call.startswith(f"after-{name} "):
            await end(call)
        return answer

    return around


def prepare(end: Callable[[str], Awaitable[None]]) -> None:
    TaskView.accept = with_crash("accept", TaskView.accept, _noted, end)
    TaskView.intend = with_crash("intend", TaskView.intend, lambda task_id: task_id, end)
    for name, kinds in (("handle", UpstreamTaskKnown), ("finish", FINISH)):
        TaskView.advance = with_crash(name, TaskView.advance, _where(kinds), end)


def _noted(draft: Task) -> str:
    CALLS[draft.id] = str(json.loads(draft.arguments).get("call"))
    return draft.id


def _where(kinds: Any) -> Callable[..., str | None]:
    return lambda task_id, happening: task_id if isinstance(happening, kinds) else None


async def intend_without_writing(self: Any, task_id: str, **_options: Any) -> Any:
    task = await self.get(task_id)
    if task is None or task.state.is_terminal:
        return await REAL_INTEND(self, task_id, **_options)
    return Intended(replace(task, state=TaskState.RUNNING))


async def accept_before_writing(self: Any, draft: Any, **options: Any) -> Any:
    """Acknowledge first, write later, as a faulty store would."""
    if options.get("sent") is not None or options.get("key") is not None:
        return await REAL_ACCEPT(self, draft, **options)

    async def later() -> None:
        await asyncio.sleep(early_by_s)
        await REAL_ACCEPT(self, draft, **options)

    LATE.append(asyncio.create_task(later()))
    owner = self.ownership
    return Change(create(draft, None, now_ms=self.now_ms(), owner=owner.owner, fence=owner.fence))


def crash_at_write(number: int, *, after: bool) -> None:
    """End the process by SIGKILL before or after this write of a script and its calls, counted from the start."""
    seen = itertools.count(1)

    def around(write: Callable[..., Awaitable[Any]]) -> Any:
        async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            mine = next(seen) == number
            if mine and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await write(self, *arguments, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return counted

    ScriptView.step_script = around(ScriptView.step_script)
    ApprovalView.change_held = around(ApprovalView.change_held)
    for name in ("accept", "intend", "advance"):
        setattr(TaskView, name, around(getattr(TaskView, name)))


def travel(seconds: int) -> None:
    clock.install(time.monotonic, lambda: time.time() + seconds)


early_by_s = 0.0
CALLS: dict[str, str] = {}
LATE: list[asyncio.Task[None]] = []
REAL_INTEND = TaskView.intend
REAL_ACCEPT = TaskView.accept

if __name__ == "__main__":
    wanted = sys.argv[1]
    if wanted == "no-intent":
        TaskView.intend = intend_without_writing
    elif wanted.startswith("early-reply+"):
        early_by_s = float(wanted.removeprefix("early-reply+"))
        TaskView.accept = accept_before_writing
    elif wanted == "disk-full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, resource.RLIM_INFINITY))
    elif wanted.startswith(("before-write+", "after-write+")):
        crash_at_write(int(wanted.partition("+")[2]), after=wanted.startswith("after"))
    elif wanted.startswith("clock+"):
        travel(int(wanted.removeprefix("clock+")))
    else:
        prepare({"crash": crash, "stop": stop}[wanted])
    sys.argv = ["taskgate", *sys.argv[2:]]
    main()
