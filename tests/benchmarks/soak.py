"""Memory, open files and disk of a gateway under an hour of mixed load, sampled every minute: `make soak`.

python -m tests.benchmarks.soak [--minutes 60] [--quiet 5] [--rate 30] [--only KIND]

Plain, keyed and large calls, calls that become tasks, are dropped by their callers, wait for an approval or ask a question,
explicit tasks that end or are cancelled, lists, and sessions that open and end: at a fixed rate, in both generations. After the
load the gateway is left alone for some minutes. The control is the same gateway before the load: the run fails if the memory at
the end is over 1.6 times the idle value, if it still grows in the second half of the load as fast as in the first, if open files
remain, or if a request failed. Disk grows with the audit log and the history, which are kept for days; it is printed per request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvloop
from tests.benchmarks.measure import processor_seconds, resident_kb
from tests.benchmarks.start import python_build
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port, listening, running

CALLERS = 8
SAMPLE_S = 60.0
TASK_TTL_MS = 60_000
MAX_GROWTH = 1.6
STRAY_FILES = 8
"""Connections that a pool or the database may keep open for later use."""
SESSION_REQUESTS = 200
"""Requests after which a caller ends its session and opens another."""


class Sample(NamedTuple):
    minute: float
    requests: int
    memory_kb: int
    files: int
    disk_bytes: int
    cpu_s: float


class Kind(NamedTuple):
    """One kind of request: how often of 1,000, the tool, and what else is special."""

    share: int
    tool: str = "far__quick"
    note_bytes: int = 400
    more: dict[str, Any] | None = None
    stateless: bool | None = None
    """The generation that has it; None for both."""


KINDS: dict[str, Kind] = {
    "plain": Kind(480, "far__repeat", 100),
    "keyed": Kind(80, more={"_meta": {"taskgate/idempotencyKey": ""}}),
    "large": Kind(20, "far__repeat", 1 << 20),
    "promoted": Kind(80, "far__slow"),
    "dropped": Kind(50, "far__slow"),
    "held": Kind(60, "far__hold", more={"task": {"ttl": TASK_TTL_MS}}),
    "asked": Kind(60, "near__ask", stateless=True),
    "task": Kind(100, more={"task": {"ttl": TASK_TTL_MS}}, stateless=False),
    "cancelled": Kind(40, "far__slow", more={"task": {"ttl": TASK_TTL_MS}}, stateless=False),
    "list": Kind(50),
}
DROPPED_AFTER_S = 0.1


@dataclass
class Caller:
    """One client of one generation. Those of 2025-11-25 open a new session now and then."""

    url: str
    stateless: bool
    http: httpx2.AsyncClient
    outcomes: Counter[str]
    only: str = ""
    session: str = ""
    sent: int = 0
    tasks: list[str] = field(default_factory=list)

    async def step(self) -> None:
        if not self.stateless and self.sent % SESSION_REQUESTS == 0:
            await self._new_session()
        self.sent += 1
        name = self.only or self._any_kind()
        kind = KINDS[name]
        if name == "list":
            answer = await self._ask("tools/list", {})
        elif name == "dropped":
            answer = await self._dropped(kind)
        else:
            answer = await self._ask("tools/call", self._call_of(kind))
        if answer.get("result", {}).get("resultType") == "input_required":
            answered = {
                key: {"action": "accept", "content": {"value": "it"}} for key in answer["result"]["inputRequests"]
            }
            more = {"inputResponses": answered, "requestState": answer["result"]["requestState"]}
            answer = await self._ask("tools/call", {**self._call_of(kind), **more})
        if name == "cancelled" and "result" in answer:
            answer = await self._ask("tasks/cancel", {"taskId": answer["result"]["task"]["taskId"]})
        error = answer.get("error")
        if name == "cancelled" and error is not None and error["data"].get("error_type") == "task_finished":
            name, error = "cancelled after its end", None
        self.outcomes[name if error is None else f"failed {name}: {error['data'].get('error_type')}"] += 1

    def _any_kind(self) -> str:
        possible = [name for name, kind in KINDS.items() if kind.stateless in (None, self.stateless)]
        return random.choices(possible, [KINDS[name].share for name in possible])[0]

    def _call_of(self, kind: Kind) -> dict[str, Any]:
        more = {**(kind.more or {})}
        if "_meta" in more:
            more["_meta"] = {"taskgate/idempotencyKey": f"{id(self)}-{self.sent}"}
        return {"name": kind.tool, "arguments": {"note": "y" * kind.note_bytes}, **more}

    async def _dropped(self, kind: Kind) -> dict[str, Any]:
        """Send a call on a connection of its own, and close the connection before the reply."""
        async with httpx2.AsyncClient(timeout=DROPPED_AFTER_S) as http:
            own = replace(self, http=http)
            try:
                return await own._ask("tools/call", self._call_of(kind))
            except httpx2.TimeoutException:
                return {}

    async def _new_session(self) -> None:
        if self.session:
            await self.http.delete(self.url, headers=self._headers("", {}))
        self.session = ""
        info = {"name": "soak", "version": "1"}
        capabilities: dict[str, Any] = {"tasks": {}}
        await self._ask(
            "initialize", {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        )

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.stateless:
            params = {**params, "_meta": {**_META, **params.get("_meta", {})}}
        body = {"jsonrpc": "2.0", "id": self.sent, "method": method, "params": params}
        reply = await self.http.post(self.url, json=body, headers=self._headers(method, params))
        self.session = reply.headers.get("mcp-session-id", self.session)
        text = reply.text
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()][-1]
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream"}
        headers["mcp-protocol-version"] = "2026-07-28" if self.stateless else "2025-11-25"
        if self.session:
            headers["mcp-session-id"] = self.session
        if self.stateless:
            headers["mcp-method"] = method
            if "name" in params:
                headers["mcp-name"] = params["name"]
        return headers


_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


async def load(callers: list[Caller], rate: float, seconds: float) -> None:
    """Send at a fixed rate. A caller that is answered late sends its next request late; nothing piles up."""
    taken = iter(range(int(rate * seconds)))
    start = time.perf_counter()

    async def work(caller: Caller) -> None:
        for number in taken:
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            await caller.step()

    await asyncio.gather(*map(work, callers))


def sample(gateway: Gateway, began: float, callers: list[Caller]) -> Sample:
    size = sum(path.stat().st_size for path in gateway.state.rglob("*") if path.is_file())
    return Sample(
        (time.perf_counter() - began) / 60,
        sum(caller.sent for caller in callers),
        resident_kb(gateway.pid),
        len(os.listdir(f"/proc/{gateway.pid}/fd")),
        size,
        processor_seconds(gateway.pid),
    )


def show(one: Sample) -> None:
    print(
        f"{one.minute:6.1f} min {one.requests:>9,} requests {one.memory_kb / 1024:>7.1f} MB {one.files:>4} files"
        f" {one.disk_bytes / 1e6:>8.1f} MB on disk {one.cpu_s:>7.1f} s of CPU",
        flush=True,
    )


async def approve(gateway: Gateway) -> None:
    """Approve what waits, every second, until cancelled."""
    token = (gateway.state / "operator-token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=60, headers=headers, base_url=gateway.base) as http:
        while True:
            for row in (await http.get("/api/approvals")).json():
                await http.post(f"/api/approvals/{row['id']}/approve", json={})
            await asyncio.sleep(1)


async def soak(folder: Path, options: argparse.Namespace) -> bool:
    far, near = free_port(), free_port()
    server = [sys.executable, "-m", "tests.benchmarks.soak_server"]
    async with (
        running([*server, str(far)], listening(far)),
        running([*server, str(near), "stateless"], listening(near)),
    ):
        gateway = Gateway(folder, free_port())
        gateway.state.mkdir(parents=True)
        gateway.write(
            {
                "servers": {
                    name: {"url": f"http://127.0.0.1:{port}/mcp"} for name, port in (("far", far), ("near", near))
                },
                "tasks": {"keep_result_ms": TASK_TTL_MS, "default_ttl_ms": TASK_TTL_MS, "promote_after_ms": 300},
                "limits": {"open_tasks_per_caller": 10_000},
                "governance": {"rules": [{"match": "hold", "action": "approve"}]},
            }
        )
        await gateway.start()
        await gateway.until_listed()
        approving = asyncio.create_task(approve(gateway))
        try:
            return await _measured(gateway, options)
        finally:
            approving.cancel()
            await gateway.stop()


async def _measured(gateway: Gateway, options: argparse.Namespace) -> bool:
    url, outcomes = f"http://127.0.0.1:{gateway.port}/mcp", Counter[str]()
    began = time.perf_counter()
    samples: list[Sample] = []
    async with httpx2.AsyncClient(timeout=120) as http:
        callers = [Caller(url, number % 2 == 1, http, outcomes, options.only) for number in range(CALLERS)]
        if options.only:
            callers = [one for one in callers if KINDS[options.only].stateless in (None, one.stateless)]
        # Plain calls only: one large result would make the control large.
        await load([replace(caller, only="plain") for caller in callers], 20, 2)
        await asyncio.sleep(2)
        idle = sample(gateway, began, callers)
        show(idle)
        working = asyncio.create_task(load(callers, options.rate, options.minutes * 60))
        while not working.done():
            await asyncio.wait({working}, timeout=SAMPLE_S)
            samples.append(sample(gateway, began, callers))
            show(samples[-1])
        await working
        for caller in callers:
            if caller.session:
                await http.delete(url, headers=caller._headers("", {}))
    await asyncio.sleep(options.quiet * 60)
    end = sample(gateway, began, callers)
    show(end)
    return _limits_kept(idle, samples, end, outcomes)


def _straight_line(samples: list[Sample]) -> bool:
    """Whether the memory grew in the second half of the load by more than half as much as in the first, and by over a tenth."""
    first, middle, last = (each.memory_kb for each in (samples[0], samples[len(samples) // 2], samples[-1]))
    return last - middle > max((middle - first) / 2, first / 10)


def _limits_kept(idle: Sample, samples: list[Sample], end: Sample, outcomes: Counter[str]) -> bool:
    busy = samples[-1]
    requests = busy.requests - idle.requests
    growth = end.memory_kb / idle.memory_kb
    failed = {kind: count for kind, count in outcomes.items() if kind.startswith("failed")}
    line = _straight_line(samples)
    print(f"requests: {dict(outcomes)}")
    print(
        f"memory after the quiet minutes: {growth:.2f} times idle (limit {MAX_GROWTH}); "
        f"{'still growing' if line else 'not growing'} in the second half; files {idle.files} -> {end.files}"
    )
    print(f"disk per request: {(busy.disk_bytes - idle.disk_bytes) / requests:.0f} bytes; failed: {failed or 'none'}")
    return growth <= MAX_GROWTH and not line and end.files <= idle.files + STRAY_FILES and not failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--quiet", type=float, default=5)
    parser.add_argument("--rate", type=float, default=30)
    parser.add_argument("--only", default="", choices=["", *KINDS], help="send this kind alone")
    options = parser.parse_args()
    print(f"{python_build()}; {options.rate:.0f} requests/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        met = uvloop.run(soak(Path(folder) / "soak", options))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
