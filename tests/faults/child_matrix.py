"""The fault matrix over standard streams: a child that exits, hangs, writes garbage or half a line, at each moment of each round.

The child (`faulty_child.py`) behaves as each call requests and keeps a ledger, which is compared with the replies of the callers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.faults.matrix import ANSWER, executed_in
from tests.virtual_time import Gateway

Wire = dict[str, Any]
CHILD = Path(__file__).with_name("faulty_child.py")
ANSWERS = ("answer, then exit", "answer behind many lines, then exit", "garbage, then the answer", "an error")
LOST = (
    "exit",
    "half a line, then exit",
    "whole answer without a newline, then exit",
    "an answer that cannot be read",
    "an answer that is too large",
    "another id",
    "silence",
    "closed output",
)
WAYS = ("plain", "task", "keyed", "promoted")
BETWEEN_S = 70.0
"""A child that died is started again after a pause, which is over by then."""


@dataclass(frozen=True, slots=True)
class Case:
    how: str
    runs: bool
    tool: str
    round_number: int = 1
    sends: int = 99

    @property
    def is_answer(self) -> bool:
        return self.how in ANSWERS

    @property
    def name(self) -> str:
        often = "always" if self.sends == 99 else f"{self.sends}x"
        return f"{self.tool}, round {self.round_number}, {often}: {self.how}, {'run' if self.runs else 'not run'}"


def cases(generation: str) -> Iterator[Case]:
    rounds = (1, 2) if generation == "2026" else (1,)
    for number, tool, sends in product(rounds, ("once", "read"), (1, 99)):
        for how, runs in product(LOST, (False, True)):
            if how == "an answer that is too large" and not runs:
                # A result proves that the call was executed, however large it is.
                continue
            yield Case(how, runs, tool, number, sends)
        if sends == 99:
            yield from (Case(how, True, tool, number, sends) for how in ANSWERS)


class ChildMatrixRun:
    """One gateway, one child, one way of calling; case after case."""

    def __init__(self, generation: str, way: str, every: list[Case], folder: Path) -> None:
        self.way = way
        self.cases = every
        self._generation = generation
        self._ledger = folder / f"ledger-{generation}-{way}"
        self._ledger.touch()

    async def run(self) -> list[str]:
        """What was wrong, a line for each."""
        far = {
            "command": sys.executable,
            "args": [str(CHILD), self._generation, str(self._ledger)],
            "restart": {"limit": 1_000_000},
            "tools": {"once": {"class": "once"}, "read": {"class": "read"}},
            "budgets": {"tool_timeout_ms": 120_000},
        }
        limits = {"open_tasks_per_caller": 100_000, "result_bytes": 100_000}
        wrong: list[str] = []
        async with Gateway({"servers": {"far": far}, "limits": limits}) as gate:
            for number, case in enumerate(self.cases):
                caller = await gate.caller(
                    "2025", capabilities={"elicitation": {"form": {}}}, answers={"elicitation/create": ANSWER}
                )
                reported = await self._reply(caller, number, case)
                wrong += [f"{self.way}: {case.name}: {what}" for what in self._check(number, case, reported)]
                await caller.close()
                await gate.advance(BETWEEN_S)
        return wrong

    async def _reply(self, caller: Any, number: int, case: Case) -> Wire:
        more: Wire = {}
        if self.way == "task":
            more = {"task": {"ttl": 300_000}}
        elif self.way == "keyed":
            more = {"_meta": {"taskgate/idempotencyKey": f"case-{number}"}}
        arguments = {
            "case": number,
            "how": case.how,
            "runs": case.runs,
            "round": case.round_number,
            "sends": case.sends,
            "delay": 46 if self.way == "promoted" else 0,
        }
        reply = await caller.begin_call(f"far__{case.tool}", arguments, **more).done(900)
        task_id = _task_in(reply.last)
        if task_id is not None:
            reply = await caller.begin("tasks/result", {"taskId": task_id}).done(900)
        found: Wire = reply.last
        return found

    def _count(self, word: str, number: int) -> int:
        return self._ledger.read_text().splitlines().count(f"{word} {number}")

    def _check(self, number: int, case: Case, reported: Wire) -> Iterator[str]:
        ran, sent, asked = (self._count(word, number) for word in ("ran", "sent", "asked"))
        executed = executed_in(reported)
        if not sent:
            yield f"never reached the child ({reported})"
        if executed == "no":
            yield f"reported `no`, and it was sent {sent} times and ran {ran} times ({reported})"
        if executed == "yes" and not ran:
            yield f"reported `yes`, and it did not run ({reported})"
        if case.tool == "once" and (ran > 1 or sent > 1):
            yield f"sent {sent} times and ran {ran} times"
        if asked > 1:
            yield f"asked {asked} times"
        if case.is_answer and "answered" not in json.dumps(reported):
            yield f"lost the answer ({reported})"
        if case.is_answer and sent > 1:
            yield f"sent {sent} times, although it was answered"


def _task_in(message: Wire) -> str | None:
    result = message.get("result") or {}
    if "task" in result:
        found: str = result["task"]["taskId"]
        return found
    for block in result.get("content", ()):
        if "continues as task " in block.get("text", ""):
            return str(block["text"].split("continues as task ")[1].split()[0].rstrip(".,;"))
    return None
