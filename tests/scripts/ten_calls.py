"""A script of ten calls, and a gateway that crashes before or after the n-th write while it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.virtual_time import Call, Caller, Gateway, Upstream

from taskgate.store.open_store import OpenStore
from taskgate.store.operation import Operation
from taskgate.store.operations.approvals import ChangeHeld
from taskgate.store.operations.scripts import StepScript
from taskgate.store.operations.tasks import Accept, Advance, Intend

WRITES = (StepScript, Accept, Intend, Advance, ChangeHeld)
CODE = """
async def once(n, tool="shop__buy"):
    try:
        return await call_tool(tool, n=n)
    except Exception as e:
        error = tool_error(e)
        return f"{error.type} {error.executed} {n}"

total = [await shop.read(n=1), await once(2)]
total += await asyncio.gather(once(3), shop.read(n=4), once(5))
colour = await ask("Which colour?")
total.append(await once(6))
total.append(await once(7, "shop__approved"))
await sleep(60)
for n in (8, 9):
    total.append(await once(n))
total.append(await shop.read(n=10))
{"total": total, "colour": colour}
"""
ANSWERS = {"elicitation/create": {"action": "accept", "content": {"answer": "blue"}}}
READ, APPROVED = (1, 4, 10), 7
CONFIG: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on", "helper_tools": "always"}},
    "governance": {"rules": [{"match": "approved", "action": "approve"}]},
    "servers": {
        "shop": {"tools": {"read": {"class": "read"}, "buy": {"class": "once"}, "approved": {"class": "once"}}}
    },
}


def ledger_server() -> tuple[Upstream, Counter[tuple[str, int]]]:
    """An upstream outside the gateway that counts every execution."""
    upstream, ran = Upstream("2025"), Counter[tuple[str, int]]()

    def tool(name: str, expected_text: Callable[[int], str]) -> None:
        @upstream.tool(name)
        async def run(call: Call) -> str:
            ran[name, call.arguments["n"]] += 1
            return expected_text(call.arguments["n"])

    tool("read", lambda n: f"read {n}")
    tool("buy", lambda n: f"bought {n}")
    tool("approved", lambda n: f"approved {n}")
    return upstream, ran


@dataclass
class Crash:
    """Crash before (or after) this write, counted from the start of the script."""

    at: int
    after: bool
    writes: int = 0
    happened: bool = False


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, gate: Gateway, crash: Crash) -> Iterator[None]:
    write = OpenStore.do

    async def around(store: OpenStore, operation: Operation[Any]) -> Any:
        if not isinstance(operation, WRITES):
            return await write(store, operation)
        crash.writes += 1
        mine = crash.writes == crash.at and not crash.happened
        if mine and not crash.after:
            await _crash(gate, crash)
        answer = await write(store, operation)
        if mine:
            await _crash(gate, crash)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(OpenStore, "do", around)
        yield


async def _crash(gate: Gateway, crash: Crash) -> None:
    crash.happened = True
    while gate.life.app.store.is_committing:  # type: ignore[attr-defined]
        await asyncio.sleep(0.001)
    gate.crash()
    await asyncio.Event().wait()


async def drive(gate: Gateway, crash: Crash) -> dict[str, Any]:
    """Start the script, approve held calls, answer questions, and restart the gateway after a crash."""
    task = ""
    begun = False
    for _ in range(400):
        if gate.process.is_dead:
            await gate.start()
        try:
            caller = await gate.caller("2025", capabilities={"elicitation": {}}, answers=ANSWERS)
            if not begun:
                reply = await caller.request(
                    "tools/call",
                    {"name": "run_script", "arguments": {"code": CODE}, "task": {"ttl": 3_600_000}},
                    {"Idempotency-Key": "ten calls"},
                )
                task, begun = str(reply.result["task"]["taskId"]), True
            done = await _look(gate, caller, task)
        except Exception:
            if not gate.process.is_dead:
                raise
            continue
        if done is not None:
            return done
        await asyncio.sleep(1)
    raise AssertionError(f"the script did not end: {crash}")


async def _look(gate: Gateway, caller: Caller, task: str) -> dict[str, Any] | None:
    for one in (await gate.operator("GET", "/api/approvals")).json():
        await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {})
    state = (await caller.request("tasks/get", {"taskId": task})).result
    if state["status"] == "input_required":
        caller.begin("tasks/result", {"taskId": task})  # its stream carries the question
    if state["status"] in ("completed", "failed", "cancelled"):
        return (await caller.request("tasks/result", {"taskId": task})).result
    return None


def verdict(result: dict[str, Any], ran: Counter[tuple[str, int]]) -> list[str]:
    """The contradictions between the end of the script and the ledger."""
    wrong = []
    content = result.get("structuredContent", {}).get("result")
    if content is None:
        return [f"no value: {result}"]
    if content["colour"] != "blue":
        wrong.append(f"colour {content['colour']}")
    expected: list[str | int] = ["read 1", 2, 3, "read 4", 5, 6, 7, 8, 9, "read 10"]
    for value, wanted in zip(content["total"], expected, strict=True):
        if isinstance(wanted, str):
            if value != wanted:
                wrong.append(f"{value} instead of {wanted}")
            continue
        times = ran["approved" if wanted == APPROVED else "buy", wanted]
        done = f"approved {wanted}" if wanted == APPROVED else f"bought {wanted}"
        unknown = value == f"outcome_unknown unknown {wanted}"
        if times > 1 or (value == done and times != 1) or not (unknown or value == done):
            wrong.append(f"call {wanted}: {value}, executed {times} times")
    if any(ran["read", n] == 0 for n in READ):
        wrong.append(f"executed {dict(ran)}")
    return wrong
