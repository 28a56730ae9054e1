"""Measure waiting scripts: `python -m tests.scripts.waiting_scripts [NUMBER]`.

So many scripts wait, the gateway is restarted, and all of them run their next step, which is their last. Printed are the worker
processes while they wait, and the CPU seconds of the gateway and of its workers from the restart to the last end. In
virtual time, with the real interpreter; the CPU time is real.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from tests.scripts.test_running_scripts import ON, shop, started
from tests.virtual_time import Gateway, run

from taskgate.core.tasks.state import TaskState
from taskgate.store.operations.task_queries import FindTask

NUMBER = 1_000
WAIT_S = 300
CODE = f"first = await shop.read(n=1)\nawait sleep({WAIT_S})\n[first, now() > 0]"
LIMIT_S = 5.0


def cpu_s() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def workers() -> int:
    """Child processes of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(len((task / "children").read_text().split()) for task in tasks)


async def measured(number: int) -> dict[str, Any]:
    config = {**ON, "limits": {"open_tasks_per_caller": 2 * number}}
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        tasks = [await started(gate, caller, CODE) for _ in range(number)]
        await gate.advance(60)
        waiting = workers()
        await gate.stop()
        stored = cpu_s()
        await gate.start()
        restarted = cpu_s()
        await gate.advance(WAIT_S)
        store = gate.life.app.store
        states = [found.state for found in [await store.ask(FindTask(task)) for task in tasks] if found is not None]
        await gate.stop()
        ended = cpu_s()
        await gate.start()
        idle = cpu_s()
        await gate.advance(WAIT_S)
        idled = cpu_s()
        return {
            "idle_s": idled[0] - idle[0],
            "scripts": number,
            "workers_while_waiting": waiting,
            "ended": sum(state is TaskState.COMPLETED for state in states),
            "restart_s": restarted[0] - stored[0],
            "gateway_s": ended[0] - stored[0],
            "workers_s": ended[1] - stored[1],
        }


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else NUMBER
    found = run(lambda: measured(number))
    total = found["gateway_s"] + found["workers_s"]
    held, ended = found["workers_while_waiting"], found["ended"]
    print(f"{number} scripts waited with {held} worker processes; {ended} ended after the restart")
    print(
        f"CPU from the restart to the last end: gateway {found['gateway_s']:.2f} s, workers {found['workers_s']:.2f} s"
    )
    print(f"together {total:.2f} s (limit {LIMIT_S:g} s); the same time without scripts {found['idle_s']:.2f} s")
    return 0 if held == 0 and ended == number and total <= LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
