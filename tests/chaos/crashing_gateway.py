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
from taskgate.core.tasks.transition import ContactLost, ErrorReceived, ResultReceived, UpstreamTaskKnown
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.open_store import OpenStore
from taskgate.store.operation import Operation
from taskgate.store.operations.approvals import ChangeHeld
from taskgate.store.operations.scripts import StepScript
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, Advance, Intend

WRITES = (StepScript, Accept, Intend, Advance, ChangeHeld)
STOPPED = "stopped at"
SMALL_BYTES = 1 << 20


async def crash(_moment: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def stop(moment: str) -> None:
    print(f"{STOPPED} {moment}.", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


def prepare(end: Callable[[str], Awaitable[None]]) -> None:
    """The same writes, with the crash before or after them for the selected tasks."""

    async def around(self: OpenStore, operation: Operation[Any]) -> Any:
        name, task_id = _moment(operation)
        call = CALLS.get(task_id, "")
        if call.startswith(f"before-{name} "):
            await end(call)
        answer = await REAL_DO(self, operation)
        if call.startswith(f"after-{name} "):
            await end(call)
        return answer

    OpenStore.do = around


def _moment(operation: Operation[Any]) -> tuple[str, str]:
    """The name of the moment at which this operation is, and its task."""
    match operation:
        case Accept(draft=draft):
            CALLS[draft.id] = str(json.loads(draft.arguments).get("call"))
            return "accept", draft.id
        case Intend(task_id=task_id):
            return "intend", task_id
        case Advance(task_id=task_id, event=UpstreamTaskKnown()):
            return "handle", task_id
        case Advance(task_id=task_id, event=ResultReceived() | ErrorReceived() | ContactLost()):
            return "finish", task_id
    return "", ""


async def intend_without_writing(self: OpenStore, operation: Operation[Any]) -> Any:
    if isinstance(operation, Intend):
        task = await self.ask(FindTask(operation.task_id))
        if task is not None and not task.state.is_terminal:
            return Intended(replace(task, state=TaskState.RUNNING))
    return await REAL_DO(self, operation)


async def accept_before_writing(self: OpenStore, operation: Operation[Any]) -> Any:
    """Acknowledge first, write later, as a faulty store would."""
    if not isinstance(operation, Accept) or operation.sent is not None or operation.key is not None:
        return await REAL_DO(self, operation)

    async def later() -> None:
        await asyncio.sleep(early_by_s)
        await REAL_DO(self, operation)

    LATE.append(asyncio.create_task(later()))
    owner = self.ownership
    return Change(create(operation.draft, None, now_ms=self.now_ms(), owner=owner.owner, fence=owner.fence))


def crash_at_write(number: int, *, after: bool) -> None:
    """End the process by SIGKILL before or after this write of a script and its calls, counted from the start."""
    seen = itertools.count(1)

    async def counted(self: OpenStore, operation: Operation[Any]) -> Any:
        mine = isinstance(operation, WRITES) and next(seen) == number
        if mine and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await REAL_DO(self, operation)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    OpenStore.do = counted


def travel(seconds: int) -> None:
    clock.install(time.monotonic, lambda: time.time() + seconds)


early_by_s = 0.0
CALLS: dict[str, str] = {}
LATE: list[asyncio.Task[None]] = []
REAL_DO = OpenStore.do

if __name__ == "__main__":
    wanted = sys.argv[1]
    if wanted == "no-intent":
        OpenStore.do = intend_without_writing
    elif wanted.startswith("early-reply+"):
        early_by_s = float(wanted.removeprefix("early-reply+"))
        OpenStore.do = accept_before_writing
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
