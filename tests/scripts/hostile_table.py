"""Print the outcome of every hostile script, the pause that others see meanwhile, and what steps cost: `make scripts-hostile`.

The pause is the longest time for which the event loop of the gateway's process did not run, beside the same without a script;
the other script runs in another worker at the same time.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from pathlib import Path

from tests.scripts.driving import FACTS, LIMITS, interpreter, returned, start
from tests.scripts.hostile import TABLE, Hostile

from taskgate.ports.script_interpreter import Failed, Finished, Suspended
from taskgate.scripts.monty_interpreter import MontyInterpreter

_TICK_S = 0.001


class LoopMonitor:
    """Beats every millisecond, and remembers the longest time without a beat."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - _TICK_S)
            last = now

    def stop(self) -> float:
        self._task.cancel()
        return self.longest * 1000


async def pause_without_scripts() -> float:
    heart = LoopMonitor()
    await asyncio.sleep(1)
    return heart.stop()


async def has_expected_outcome(run: MontyInterpreter, hostile: Hostile) -> bool:
    heart = LoopMonitor()
    began = time.perf_counter()
    running = asyncio.create_task(start(run, hostile.code, hostile.limits))
    others = 0
    slowest = 0.0
    while not running.done() or not others:
        at = time.perf_counter()
        assert isinstance(await start(run, "1 + 1"), Finished)
        slowest = max(slowest, time.perf_counter() - at)
        others += 1
        await asyncio.sleep(0.01)
    step = await running
    ends = (step.reason, step.error_type) if isinstance(step, Failed) else None
    right = ends == hostile.ends and not isinstance(step, Suspended)
    shown = f"{step.reason.value}: {step.error_type}" if isinstance(step, Failed) else "finished"
    print(
        f"{'' if right else 'WRONG '}{hostile.name:34} {shown:32} {time.perf_counter() - began:6.2f} s"
        f" {heart.stop():7.1f} ms {slowest * 1000:8.1f} ms",
        flush=True,
    )
    return right


async def close(run: MontyInterpreter) -> None:
    """Returns when the processes have ended, so that their CPU time is known."""
    pids = run.pool.worker_pids
    await run.aclose()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        await asyncio.sleep(0.01)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own_ms(since: float, steps: int) -> float:
    return (time.process_time() - since) / steps * 1000


async def cold_ms() -> float:
    before = cpu_of_children()
    run = interpreter(max_workers=1)
    await start(run, "await files.read_file(name='a')")
    await close(run)
    return (cpu_of_children() - before) * 1000


async def cost() -> None:
    """CPU time of workers, in the reports of their steps and of ended processes."""
    cold = sorted([await cold_ms() for _ in range(9)])
    print(
        f"first step, cold: {cold[0]:.0f} to {cold[-1]:.0f} ms, median {cold[4]:.0f} ms of CPU in the worker, started and ended"
    )
    run = interpreter(max_workers=1)
    await start(run, "await files.read_file(name='a')")
    warm, own = 0.0, time.process_time()
    for _ in range(50):
        warm += (await start(run, "await files.read_file(name='a')")).output.cpu_seconds
    print(f"first step, warm: {warm / 50 * 1000:.2f} ms of CPU in the worker, {own_ms(own, 50):.2f} ms in the gateway")
    step = await start(
        run, "total = 0\nfor i in range(200):\n    total += (await files.read_file(name=str(i)))['n']\ntotal"
    )
    spent, steps, largest = 0.0, 0, 0
    own = time.process_time()
    while isinstance(step, Suspended):
        largest = max(largest, len(step.snapshot))
        step = await run.resume(step.snapshot, {step.pending[0]: returned({"n": 1})}, LIMITS, FACTS)
        spent += step.output.cpu_seconds
        steps += 1
    print(
        f"later step: {spent / steps * 1000:.2f} ms of CPU in the worker, {own_ms(own, steps):.2f} ms in the gateway;"
        f" snapshot {largest:,} bytes"
    )
    memory = sum(
        int(line.split()[1])
        for pid in _group(run)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if "VmRSS" in line
    )
    print(f"worker and interpreter: {memory / 1024:.0f} MB resident")
    await run.aclose()


def _group(run: MontyInterpreter) -> list[int]:
    [worker] = run.pool.worker_pids
    return [
        int(found.name)
        for found in Path("/proc").iterdir()
        if found.name.isdigit() and _in_group(int(found.name), worker)
    ]


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


async def main() -> int:
    run = interpreter(max_workers=2)
    assert isinstance(await start(run, "1"), Finished)
    print(f"longest pause without scripts: {await pause_without_scripts():.1f} ms\n")
    print(f"{'script':34} {'outcome':32} {'took':>8} {'pause':>10} {'other script':>11}")
    right = [await has_expected_outcome(run, hostile) for hostile in TABLE]
    await close(run)
    print()
    await cost()
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
