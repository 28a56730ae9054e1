"""Random chains of corrected scripts, each resuming the last one, with a gateway that crashes in between.

The ledger outside of the gateway shows what was executed, and every report must list it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.scripts.ten_calls import Crash, crashing
from tests.virtual_time import Call, Gateway, Upstream

CONFIG: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "servers": {"shop": {"tools": {"read": {"class": "read"}, "buy": {"class": "once"}}}},
}
SHORTEST, LONGEST = 2, 6
"""Scripts of one chain."""
LAST_WRITE = 40
"""A crash comes at one of so many writes, or not at all if the script makes fewer."""


@dataclass
class Ledger:
    """A server outside of the gateway that counts every execution."""

    upstream: Upstream = field(default_factory=lambda: Upstream("2025"))
    ran: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in ("read", "buy"):
            self._tool(name)

    def _tool(self, name: str) -> None:
        @self.upstream.tool(name)
        async def run(call: Call) -> str:
            self.ran[name, call.arguments["n"]] += 1
            await call.sleep(call.arguments["n"] % 3)
            return f"{name} {call.arguments['n']}"


@dataclass
class Script:
    code: str
    calls: dict[int, tuple[str, int]]
    """The tool and the argument of the call on each line."""


def written(chance: random.Random, calls: list[tuple[str, int]], *, fails: bool) -> Script:
    """A script of these calls, each on a line of its own, some in parallel. What raises is caught, except at the end."""
    lines, at = ["import asyncio", "done = []"], {}
    left = list(calls)
    while left:
        together = [left.pop() for _ in range(min(len(left), chance.choice((1, 1, 2, 3))))]
        lines += ["try:", "    done.append(await asyncio.gather("]
        for tool, n in together:
            lines.append(f"        shop.{tool}(n={n}),")
            at[len(lines)] = (tool, n)
        lines += ["    ))", "except Exception as e:", "    done.append(tool_error(e).type)"]
    return Script("\n".join([*lines, "raise ValueError('a typo')" if fails else "done"]), at)


@dataclass
class Chain:
    """One chain: which calls its scripts have made, and what its reports have shown."""

    gate: Gateway
    ledger: Ledger
    chance: random.Random
    begin: int
    """The first number of the calls of this chain."""
    scripts: dict[str, Script] = field(default_factory=dict)
    calls: int = 0
    crashes: int = 0
    wrong: list[str] = field(default_factory=list)

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run every script of the chain, and compare each report with the ledger."""
        length, known, last = self.chance.randint(SHORTEST, LONGEST), list[tuple[str, int]](), None
        for number in range(length):
            known += [(self.chance.choice(("buy", "buy", "read")), self.begin + len(known) + more) for more in range(3)]
            script = written(self.chance, self._some_of(known), fails=number + 1 < length)
            crash = Crash(self.chance.randint(1, LAST_WRITE), after=self.chance.random() < 0.5)
            with crashing(monkeypatch, self.gate, crash):
                last, result = await self._run_one(script, f"{self.begin} {number}", last)
            self.calls += len(script.calls)
            self.crashes += crash.happened
            self._compare(last, result["structuredContent"])

    def _some_of(self, known: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """A correction makes most of the earlier calls again, in another order."""
        return self.chance.sample(known, k=max(2, round(len(known) * self.chance.uniform(0.6, 1.0))))

    async def _run_one(self, script: Script, key: str, resume_of: str | None) -> tuple[str, dict[str, Any]]:
        given = {"code": script.code} | ({"resume_of": resume_of} if resume_of is not None else {})
        params = {"name": "run_script", "arguments": given, "task": {"ttl": 3_600_000}}
        while True:
            if self.gate.process.is_dead:
                await self.gate.start()
            try:
                caller = await self.gate.caller("2025")
                reply = await caller.request("tools/call", params, {"Idempotency-Key": key})
                task = str(reply.result["task"]["taskId"])
                self.scripts[task] = script
                while (await caller.request("tasks/get", {"taskId": task})).result["status"] == "working":
                    await asyncio.sleep(0.5)
                return task, (await caller.request("tasks/result", {"taskId": task})).result
            except Exception:
                if not self.gate.process.is_dead:
                    raise

    def _compare(self, task: str, content: dict[str, Any]) -> None:
        mine = {call for script in self.scripts.values() for call in script.calls.values()}
        ran = {call for call in mine if self.ledger.ran[call]}
        self.wrong += [f"{call} ran twice" for call in ran if call[0] == "buy" and self.ledger.ran[call] > 1]
        groups = content["calls"]
        if "error" not in content:
            if groups["executed"] + groups["unknown"] < len(ran):
                self.wrong.append(f"{len(ran)} calls ran, and the result counts {groups}")
            return
        listed = {
            self.scripts[call.get("script", task)].calls[call["line"]]
            for call in (*groups["executed"], *groups["unknown"])
        }
        self.wrong += [f"{call} ran and is not in the report of {task}" for call in ran - listed]
        if ran and content["error"]["executed"] == "no":
            self.wrong.append(f"{task} reports that nothing was executed")


@dataclass
class Outcome:
    chains: int = 0
    calls: int = 0
    crashes: int = 0
    wrong: list[str] = field(default_factory=list)


async def run_chains(monkeypatch: pytest.MonkeyPatch, seed: int, calls: int) -> Outcome:
    """Run chains until their scripts have made so many calls."""
    chance, ledger, outcome = random.Random(seed), Ledger(), Outcome()
    async with Gateway(CONFIG, {"shop": ledger.upstream}) as gate:
        while outcome.calls < calls:
            chain = Chain(gate, ledger, chance, begin=1_000 * outcome.chains)
            await chain.run(monkeypatch)
            outcome.chains += 1
            outcome.calls += chain.calls
            outcome.crashes += chain.crashes
            outcome.wrong += chain.wrong
            await asyncio.sleep(0)
    return outcome
