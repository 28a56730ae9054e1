"""The fault matrix over HTTP: every status, body, break and moment, in every way a call can be made, in each round.

The server follows the table in docs/errors.md: it executes a call unless its reply proves that it did not. Each execution is
recorded before the reply. This record is compared with the reply of the caller.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream
from tests.virtual_time.upstream_call import AsksInput

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.mcp.failures import REFUSALS
from taskgate.store.operation import Operation
from taskgate.store.operations.task_limits import ADDRESS_FACTOR
from taskgate.store.operations.tasks import Accept

Wire = dict[str, Any]
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}}},
}
ANSWER = {"action": "accept", "content": {"value": "blue"}}
BODIES = ("nothing", "text", "error without id", "error with another id", "error with our id", "result with our id")
BREAKS = ("reset", "silence", "cut head", "cut json", "cut stream", "no answer on stream", "garbage", "other result")
SHORT_STATUSES = (200, 202, 302, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 421, 422, 429, 500, 502, 503, 504)
ALL_STATUSES = (*(status for status in range(200, 600) if status not in (204, 205, 304)),)
WAYS = ("plain", "task", "keyed", "promoted", "unstored", "above limit")
"""`unstored`: the store takes the call as a task only after its caller got the reply without a task id. `above limit`: the caller
has as many open tasks as it may have when its call becomes a task."""
SLOW_WAYS = frozenset({"promoted", "unstored", "above limit"})
UNSTORED_S = 10.0
WAITS_S = 100_000.0
RESEND_ONCE = {404, 429}


@dataclass(frozen=True, slots=True)
class Fault:
    """What the server does instead of a proper answer. `status` 0 means that the exchange fails as `how` selects."""

    status: int
    how: str
    runs: bool

    @property
    def name(self) -> str:
        what = self.how if not self.status else f"HTTP {self.status} with {self.how}"
        return f"{what}, {'run' if self.runs else 'not run'}"

    @property
    def is_answer(self) -> bool:
        return self.how.endswith("with our id")

    @property
    def proves_no_run(self) -> bool:
        return self.status in REFUSALS and not self.is_answer


@dataclass(frozen=True, slots=True)
class Case:
    """`sends`: how many sends of the faulty round fail; the next one is answered properly."""

    fault: Fault
    tool: str
    round_number: int = 1
    sends: int = 99

    @property
    def name(self) -> str:
        often = "always" if self.sends == 99 else f"{self.sends}x"
        return f"{self.tool}, round {self.round_number}, {often}: {self.fault.name}"


@dataclass(slots=True)
class Books:
    """The ledger: what was executed and sent for each case."""

    ran: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    asked: Counter[int] = field(default_factory=Counter)


def faults(statuses: Iterable[int], bodies: Iterable[str] = BODIES) -> Iterator[Fault]:
    for status, body, runs in product(statuses, bodies, (False, True)):
        fault = Fault(status, body, runs)
        if runs and fault.proves_no_run:
            continue
        if fault.is_answer and not runs:
            continue
        if status == 200 and body == "text" and not runs:
            continue
        yield fault
    for how, runs in product(BREAKS, (False, True)):
        yield Fault(0, how, runs)


def server_for(generation: str, cases: list[Case], books: Books, delay_s: float) -> Upstream:
    server = Upstream(generation)

    async def tool(call: Call) -> Any:
        number = call.arguments["case"]
        case = cases[number]
        answers = call.params.get("inputResponses")
        if case.round_number == 2 and not answers:
            books.asked[number] += 1
            raise AsksInput("colour", QUESTION)
        books.sent[number] += 1
        await call.sleep(delay_s)
        faulty = books.sent[number] <= case.sends
        if not faulty or case.fault.runs:
            books.ran[number] += 1
        if faulty:
            await misbehave(call, case.fault)
            return None
        return f"ran {number}"

    for name in ("once", "read"):
        server.tool(name, tool)
    server.tool("wait", lambda call: call.sleep(WAITS_S))
    return server


async def misbehave(call: Call, fault: Fault) -> None:
    reply, answer = call.reply, {"jsonrpc": "2.0", "id": call.message["id"]}
    proper = json.dumps({**answer, "result": {"resultType": "complete", "content": [], "vendor": "proper"}}).encode()
    if fault.status:
        body, kind = _body(fault.how, answer)
        reply.send(fault.status, body, {"content-type": kind} if body else {})
        return
    match fault.how:
        case "reset":
            reply.over = True
            reply.end.abort()
        case "silence":
            await call.sleep(100_000)
        case "cut head":
            reply.cut_after(20)
            reply.send(200, proper, {"content-type": "application/json"})
        case "cut json":
            reply.cut_after(len(proper) + 30)
            reply.send(200, proper, {"content-type": "application/json"})
        case "cut stream":
            reply.cut_after(200)
            reply.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
            reply.event({**answer, "result": {"content": [{"type": "text", "text": "x" * 300}]}})
        case "no answer on stream":
            reply.open_stream()
            reply.end_stream()
        case "garbage":
            reply.over = True
            reply.write(b"\x00\x01 this is not HTTP\r\n\r\n")
            reply.end.close()
        case _:
            reply.send(200, json.dumps({**answer, "id": "another"}).encode(), {"content-type": "application/json"})


def _body(how: str, answer: Wire) -> tuple[bytes, str]:
    error = {"error": {"code": -32603, "message": "broken"}}
    payload: dict[str, Any] = {
        "nothing": b"",
        "text": b"no JSON here",
        "error without id": {"jsonrpc": "2.0", "id": None, **error},
        "error with another id": {"jsonrpc": "2.0", "id": "server-error", **error},
        "error with our id": {**answer, **error},
        "result with our id": {**answer, "result": {"content": [{"type": "text", "text": "answered"}]}},
    }
    body = payload[how]
    return (body, "text/plain") if isinstance(body, bytes) else (json.dumps(body).encode(), "application/json")


class MatrixRun:
    """One gateway, one server, one way of calling; several cases at a time, each with a session of its own."""

    def __init__(self, generation: str, way: str, cases: list[Case], at_once: int = 20) -> None:
        self._limit = 1 if way == "above limit" else 100_000
        self._at_once = min(at_once, ADDRESS_FACTOR * self._limit)
        self.way = way
        self._stateless = generation == "2026"
        self.cases = cases
        self.books = Books()
        self._server = server_for(generation, cases, self.books, 46 if way in SLOW_WAYS else 0)

    async def run(self) -> list[str]:
        """What was wrong, a line for each."""
        config = {
            "servers": {
                "far": {
                    "tools": {"once": {"class": "once"}, "read": {"class": "read"}},
                    "budgets": {"tool_timeout_ms": 120_000},
                }
            },
            "limits": {"open_tasks_per_caller": self._limit},
        }
        wrong: list[str] = []
        async with Gateway(config, {"far": self._server}) as gate:
            if self.way == "unstored":
                refuse_at_first(gate)
            for first in range(0, len(self.cases), self._at_once):
                numbers = range(first, min(first + self._at_once, len(self.cases)))
                for found in await asyncio.gather(*(self._one(gate, number) for number in numbers)):
                    wrong += found
        return wrong

    async def _one(self, gate: Gateway, number: int) -> list[str]:
        case = self.cases[number]
        caller = await gate.caller(
            "2025", capabilities={"elicitation": {"form": {}}}, answers={"elicitation/create": ANSWER}
        )
        waiting = await self._reach_limit(caller) if self.way == "above limit" else None
        reported = await self._reply(caller, number, case)
        if waiting is not None:
            await caller.request("tasks/cancel", {"taskId": waiting})
        await caller.close()
        return [f"{self.way}: {case.name}: {what}" for what in self._check(number, case, reported)]

    async def _reach_limit(self, caller: Any) -> str:
        """Begin a task that does not end; another one is refused."""
        begun = await caller.call("far__wait", {}, task={"ttl": 300_000})
        refused = await caller.call("far__wait", {}, task={"ttl": 300_000})
        assert executed_in(refused.last) == "no", refused.last
        found: str = begun.result["task"]["taskId"]
        return found

    async def _reply(self, caller: Any, number: int, case: Case) -> Wire:
        more: Wire = {}
        if self.way == "task":
            more = {"task": {"ttl": 300_000}}
        elif self.way == "keyed":
            more = {"_meta": {"taskgate/idempotencyKey": f"case-{number}"}}
        reply = await caller.begin_call(f"far__{case.tool}", {"case": number}, **more).done(900)
        task_id = self._task_in(reply.last)
        if self.way == "unstored" and executed_in(reply.last) != "answer":
            task_id = await self._stored_late(caller, reply.last)
        if task_id is not None:
            reply = await caller.begin("tasks/result", {"taskId": task_id}).done(900)
        found: Wire = reply.last
        return found

    async def _stored_late(self, caller: Any, told: Wire) -> str:
        assert executed_in(told) == "maybe", told
        while not (tasks := (await caller.request("tasks/list")).result["tasks"]):
            await asyncio.sleep(1)
        found: str = tasks[0]["taskId"]
        return found

    def _task_in(self, message: Wire) -> str | None:
        result = message.get("result") or {}
        if "task" in result:
            found: str = result["task"]["taskId"]
            return found
        for block in result.get("content", ()):
            if "continues as task " in block.get("text", ""):
                return str(block["text"].split("continues as task ")[1].split()[0].rstrip(".,;"))
        return None

    def _check(self, number: int, case: Case, reported: Wire) -> Iterator[str]:
        ran, sent = self.books.ran[number], self.books.sent[number]
        executed = executed_in(reported)
        if executed == "no" and (ran or case.round_number > 1):
            yield f"reported `no`, and it ran {ran} times ({reported})"
        if executed == "yes" and not ran:
            yield f"reported `yes`, and it did not run ({reported})"
        if case.tool == "once" and ran > 1:
            yield f"ran {ran} times"
        if self.books.asked[number] > 1:
            yield f"asked {self.books.asked[number]} times"
        recovered = executed == "answer" and f"ran {number}" in json.dumps(reported)
        if case.fault.is_answer and not _is_the_answer(reported, case.fault):
            yield f"lost the answer ({reported})"
        if case.fault.proves_no_run and case.round_number == 1 and executed == "maybe":
            yield f"reported `maybe`, and the answer proves that it did not run ({reported})"
        if sent > _most_sends(case):
            yield f"sent {sent} times"
        if case.sends == 1 and case.fault.status == 429 and not recovered:
            yield f"not sent again after the cause was cured ({reported})"
        if case.sends == 1 and case.tool == "read" and not recovered and self._repeats(case):
            yield f"a call that may be repeated was not ({reported})"

    def _repeats(self, case: Case) -> bool:
        """Whether a durable call that may be repeated has to be: it is not over, and all that was sent is on the disk."""
        if self.way == "plain" or case.fault.proves_no_run or case.fault.is_answer:
            return False
        # A stateful server may answer a 202 later, on another stream.
        waits = case.fault.how == "silence" or (case.fault.status == 202 and not self._stateless)
        return not waits


def refuse_at_first(gate: Gateway) -> None:
    """The store refuses the tasks of each caller for some seconds after the first."""
    store, refused_since = gate.life.app.store, dict[str, float]()
    write = store.do

    async def accept_later(operation: Operation[Any]) -> Any:
        if isinstance(operation, Accept):
            now = clock.monotonic()
            if now < refused_since.setdefault(operation.draft.caller, now) + UNSTORED_S:
                raise GatewayFault("store_unavailable", "The store cannot accept more writes now.")
        return await write(operation)

    store.do = accept_later


def executed_in(reported: Wire) -> str:
    """`answer` for a reply of the server itself, else `executed` of the gateway's error."""
    if "error" in reported:
        return str((reported["error"].get("data") or {}).get("executed", "answer"))
    error = (reported["result"].get("_meta") or {}).get("taskgate/error")
    return str(error["executed"]) if error else "answer"


def _is_the_answer(reported: Wire, fault: Fault) -> bool:
    text = json.dumps(reported)
    return '"answered"' in text if fault.how == "result with our id" else '"broken"' in text


def _most_sends(case: Case) -> int:
    """By the table: a refused call is sent again only after its cause was removed, a repeatable one three times, any other once."""
    if case.fault.is_answer:
        return 1
    if case.fault.proves_no_run:
        return 2 if case.fault.status in RESEND_ONCE else 1
    return 3 if case.tool == "read" else 1
