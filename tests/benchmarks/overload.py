"""Four times the load that the gateway can process: whether it rejects calls or collapses.

First as many requests as it can answer on a few connections (the sustainable load), then four times that, arriving by the clock
independent of the answers, over many connections. Printed are the requests that were answered in time, refused and late, those
that the client could not send, and the memory. Called by `mixed --overload`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from tests.benchmarks.measure import resident_kb
from tests.benchmarks.mixed import LINES, RATE, Line, Mix, fill, percentile, report
from tests.harness.gateway import Gateway

CONNECTIONS = 2_000
DEADLINE_S = 5.0
TIMEOUT_S = 1.0
FACTOR = 4


class Crowd:
    """Arrivals by the clock. One that finds every connection taken for a second is given up by its own side: unsent."""

    def __init__(self, mix: Mix, lines: list[Line]) -> None:
        self.mix = mix
        self.free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()
        for line in lines:
            self.free.put_nowait(line)
        self.counts: Counter[str] = Counter()
        self.took: dict[str, list[float]] = {"answered": [], "refused": []}

    async def one(self) -> None:
        try:
            line = await asyncio.wait_for(self.free.get(), TIMEOUT_S)
        except TimeoutError:
            self.counts["unsent"] += 1
            return
        try:
            _, method, params = self.mix.next(line)
            sent = time.perf_counter()
            _, answer = await line.ask(method, params)
        except (OSError, asyncio.IncompleteReadError):
            self.counts["lost"] += 1
            return
        now = time.perf_counter()
        error = answer.get("error")
        if error is None:
            self.counts["answered" if now - sent <= DEADLINE_S else "late"] += 1
            self.took["answered"].append(now - sent)
        else:
            kind = error["data"]["error_type"]
            self.counts["refused" if kind == "overloaded" else kind] += 1
            self.took["refused"].append(now - sent)
        self.free.put_nowait(line)

    async def run(self, rate: float, seconds: float) -> None:
        start, total = time.perf_counter(), int(rate * seconds)
        open_ones: set[asyncio.Task[None]] = set()
        for number in range(total):
            wait = start + number / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self.one())
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)
        if open_ones:
            _done, left = await asyncio.wait(open_ones, timeout=60)
            self.counts["never"] += len(left)
            for task in left:
                task.cancel()


async def measure_overload(gateway: Gateway, tasks: int, seconds: float) -> None:
    lines = []
    for _ in range(LINES):
        line = Line(gateway.port)
        await line.open()
        lines.append(line)
    made = await fill(lines, tasks)
    mix = Mix(lines, made)
    sustainable = await _flat_out(mix, seconds)
    report("as much as it can", mix, sustainable)
    sessions = [line.session for line in lines]
    crowd_lines = []
    for number in range(CONNECTIONS):
        line = Line(gateway.port)
        await line.open(sessions[number % len(sessions)])
        crowd_lines.append(line)
    by_session = {line.session: mix.tasks[line] for line in lines if line in mix.tasks}
    busy = Mix(crowd_lines, [])
    busy.tasks = {line: by_session[line.session] for line in crowd_lines}
    crowd, before = Crowd(busy, crowd_lines), resident_kb(gateway.pid)
    offered = sustainable * FACTOR
    await crowd.run(offered, seconds)
    print(f"at {FACTOR} times that ({offered:.0f}/s offered by the clock): {dict(crowd.counts)}")
    for kind, took in crowd.took.items():
        if took:
            p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
            print(f"  {kind:9} n={len(took):6} p50={p50:8.2f} ms p99={p99:8.2f} ms")
    print(f"  the gateway took {before / 1024:.0f} MB before and {resident_kb(gateway.pid) / 1024:.0f} MB after")
    calm = Mix(lines, made)
    report("afterwards", calm, await calm.run(RATE / 4, 3))


async def _flat_out(mix: Mix, seconds: float) -> float:
    """Every connection sends its next request as soon as it has its reply."""
    end, answered = time.perf_counter() + seconds, 0

    async def work(line: Line) -> None:
        nonlocal answered
        while time.perf_counter() < end:
            await mix.one(line, time.perf_counter())
            answered += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(line) for line in mix.lines))
    return answered / (time.perf_counter() - began)
