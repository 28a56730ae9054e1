"""History, audit, totals, usage and recorded calls agree after a crash of the gateway at each of its commits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.virtual_time import Call, Failure, Gateway, Upstream, run, the_loop

from taskgate.store.sqlite.writer import Writer

CONFIG: dict[str, Any] = {
    "profile": "production",
    "history": {"sample": 10_000},
    "governance": {"rules": [{"match": "drop", "action": "deny"}], "record": {}},
    "tasks": {"promote_after_ms": 1_000},
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on", "helper_tools": "always"}},
    "servers": {"shop": {"tools": {"slow": {"class": "once"}, "build": {"class": "once"}}}},
}
CODE = "[await shop.read(n=1), await shop.build(n=2)]"
PLAIN = ("look", "complain", "fail")
"""Tools that are only called plainly, so that the ledger of their server counts plain calls."""
LAST_ROUNDS_S = 1.5
"""A round lasts a second, and is prepared and committed within the time after it."""


@dataclass
class Crash:
    """Crash before (or after) this commit, counted from the first call."""

    at: int
    after: bool
    commits: int = 0
    times: list[float] = field(default_factory=list)


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, gate: Gateway, crash: Crash) -> Iterator[None]:
    begin, finish = Writer._run_batch, Writer._finish_batch

    def now(writer: Writer) -> None:
        writer._is_busy = False  # so that nothing waits for the commit that does not happen, or has
        crash.times.append(the_loop().time())
        gate.crash()

    def run_batch(writer: Writer) -> None:
        crash.commits += 1
        if crash.commits == crash.at and not crash.after:
            now(writer)
        else:
            begin(writer)

    def finish_batch(writer: Writer, *outcome: Any) -> None:
        if crash.commits == crash.at and crash.after and not crash.times:
            now(writer)
        else:
            finish(writer, *outcome)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_run_batch", run_batch)
        patch.setattr(Writer, "_finish_batch", finish_batch)
        yield


def shop(ran: list[tuple[str, float]]) -> Upstream:
    server = Upstream("2025")

    def tool(name: str, sleeps: float, answers: Any) -> None:
        @server.tool(name)
        async def call(call: Call) -> Any:
            await call.sleep(sleeps)
            ran.append((name, the_loop().time()))
            return answers(call)

    def fails(call: Call) -> Any:
        raise Failure(-32000, "no such thing")

    tool("look", 0.01, lambda _: "seen")
    tool("read", 0.01, lambda _: "read")
    tool("build", 0.5, lambda _: "built")
    tool("slow", 3, lambda _: "late")
    tool("drop", 0, lambda _: "gone")
    tool("complain", 0, lambda _: {"content": [{"type": "text", "text": "not like this"}], "isError": True})
    tool("fail", 0, fails)
    return server


STEPS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("shop__look", {}, 0.3),
    ("shop__drop", {}, 0.3),
    ("shop__complain", {}, 0.7),
    ("shop__fail", {}, 0.2),
    ("shop__look", {}, 0.5),
    ("shop__slow", {}, 4),
    ("shop__build", {"task": {}}, 2),
    ("run_script", {"arguments": {"code": CODE}, "task": {}}, 4),
    ("shop__look", {}, 1.2),
    ("shop__drop", {}, 5),
)


async def drive(gate: Gateway) -> None:
    """Make the calls in turn, whatever becomes of them."""
    caller: Any = None
    for name, members, pause in STEPS:
        if gate.process.is_dead:
            await gate.start()
            caller = None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            if caller is None:
                caller = await gate.caller("2025")
            call = caller.begin("tools/call", {"name": name, "arguments": {}, **members})
            await gate.advance(pause)
            if not gate.process.is_dead:
                await call.done()
    if gate.process.is_dead:
        await gate.start()
    await gate.advance(15)


async def records(gate: Gateway) -> dict[str, Any]:
    """What each kind of record has, in the same words: the number of calls by outcome, and of those that were sent."""

    async def got(path: str) -> Any:
        reply = await gate.operator("GET", path)
        assert reply.status == 200, (path, reply.body)
        return reply.json()

    history = (await got("/api/v1/history?limit=500"))["rows"]
    totals = await got("/api/v1/history/totals?by=caller&since=1h")
    usage = await got("/api/v1/usage?by=tool")
    audit = (await got("/api/v1/audit?limit=500"))["rows"]
    recorded = (await got("/api/v1/rules/recorded?limit=500"))["calls"]
    ends, events = Counter[str](), Counter[str]()
    for row in history:
        ends[row["outcome"]] += row["count"]
        events[row["kind"]] += row["count"]
    counted = Counter[str]()
    for total in totals:
        counted.update({outcome: calls for outcome, calls in total["outcomes"].items() if calls})
    ended_tasks = {row["task_id"] for row in audit if row["event"] in ENDS}
    return {
        "history": dict(ends),
        "totals": dict(counted),
        "kinds": {kind: events[kind] for kind in ("call", "denial", "task")},
        "audit": {
            "call": sum(row["event"] == "call" for row in audit),
            "denial": sum(row["event"] == "call_denied" for row in audit),
            "task": len(ended_tasks),
        },
        "sent": dict(Counter(row["tool"] for row in history if row["kind"] != "denial" and row["attempts"])),
        "usage": {row["tool"]: row["calls"] for row in usage if row["calls"]},
        "plain": dict(Counter(row["tool"] for row in history if row["tool"] in (*PLAIN, "drop"))),
        "recorded": dict(Counter(call["name"] for call in recorded if call["name"] in (*PLAIN, "drop"))),
    }


ENDS = ("task_completed", "task_failed", "task_cancelled", "task_outcome_unknown", "task_expired", "task_rejected")


def disagreements(found: dict[str, Any]) -> list[str]:
    pairs = (("history", "totals"), ("kinds", "audit"), ("sent", "usage"), ("plain", "recorded"))
    return [f"{one} {found[one]}, {other} {found[other]}" for one, other in pairs if found[one] != found[other]]


async def one_crash(monkeypatch: pytest.MonkeyPatch, crash: Crash) -> list[str]:
    ran: list[tuple[str, float]] = []
    async with Gateway(CONFIG, {"shop": shop(ran)}) as gate:
        await gate.advance(3)
        with crashing(monkeypatch, gate, crash):
            await drive(gate)
        found = await records(gate)
        wrong = disagreements(found)
        for name in PLAIN:
            ledger = [at for tool, at in ran if tool == name]
            may_be_lost = sum(any(0 <= crashed - at <= LAST_ROUNDS_S for crashed in crash.times) for at in ledger)
            kept = found["plain"].get(name, 0)
            if not len(ledger) - may_be_lost <= kept <= len(ledger):
                wrong.append(
                    f"{name} ran {len(ledger)} times, {may_be_lost} just before the crash, and history has {kept}"
                )
        await gate.restart()
        again = await records(gate)
        return [*wrong, *disagreements(again), *([] if again == found else [f"{found} became {again}"])]


COMMITS = 24
"""As many commits as the calls have without a crash."""


def crash_at(monkeypatch: pytest.MonkeyPatch, crash: Crash) -> None:
    assert run(lambda: one_crash(monkeypatch, crash)) == [], crash
    assert crash.times, crash


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [2, 5, 8, 11, 14, 17, 20, 23])
def test_records_agree_after_a_crash_at_some_commits(monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    crash_at(monkeypatch, Crash(at, after))


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_records_agree_after_a_crash_at_every_commit(monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    crash_at(monkeypatch, Crash(at, after))


def test_records_agree_without_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Crash(10_000, after=False)
    assert run(lambda: one_crash(monkeypatch, crash)) == []
    assert crash.commits >= COMMITS
