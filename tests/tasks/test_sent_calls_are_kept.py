"""A call that was sent is answered in time and its outcome recorded, whatever keeps the store from taking it as a task."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.load.test_limits_of_tenants import secret, token_of
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time
from tests.virtual_time.callers import TASKS

from taskgate.core.errors import GatewayFault
from taskgate.gateway.tasks.promotion import STORED_WITHIN_S
from taskgate.store.batch_writer import Batch, BatchWriter
from taskgate.store.open_store import OpenStore
from taskgate.store.operation import Operation
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite import writer
from taskgate.telemetry.logs import log

PROMOTE_S = 45.0
REPLY_S = PROMOTE_S + STORED_WITHIN_S


def slow_server(generation: str = "2025") -> Upstream:
    server = Upstream(generation)

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 60))
        return f"slow {call.arguments.get('name', '')} is done"

    @server.tool("breaks")
    async def breaks(call: Call) -> str:
        await call.sleep(60)
        call.reply.cut_after(0)
        return "never seen"

    return server


def error_of(reply: Any) -> dict[str, Any]:
    error: dict[str, Any] = reply.last["error"]["data"]
    return error


def tool_error_of(reply: Any) -> dict[str, Any]:
    assert reply.result["isError"] is True
    error: dict[str, Any] = reply.result["_meta"]["taskgate/error"]
    return error


async def rows(gate: Gateway) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
    return shown


class BrokenStore:
    """Makes the store refuse new tasks while `broken` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self.broken = False
        self.asked = 0
        getattr(self, f"_{how}")(monkeypatch)

    def _busy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Too many writes are queued."""
        self._patch_accept(monkeypatch, self._refuse)

    def _hanging(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The database does not answer: a write fails after its own time limit."""
        self._patch_accept(monkeypatch, self._hang)

    def _faulty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bug: the write fails, and no attempt helps."""

        async def fail() -> None:
            raise RuntimeError("a bug")

        self._patch_accept(monkeypatch, fail)

    def _full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        commit = writer.Writer._commit

        def full(one: writer.Writer) -> str | None:
            if not self.broken:
                return commit(one)
            self.asked += 1
            return one._roll_back(sqlite3.OperationalError("database or disk is full"))

        monkeypatch.setattr(writer.Writer, "_commit", full)

    def _patch_accept(self, monkeypatch: pytest.MonkeyPatch, refuse: Callable[[], Any]) -> None:
        write = OpenStore.do

        async def write_or_refuse(store: OpenStore, operation: Operation[Any]) -> Any:
            if isinstance(operation, Accept) and self.broken:
                self.asked += 1
                await refuse()
            return await write(store, operation)

        monkeypatch.setattr(OpenStore, "do", write_or_refuse)

    async def _refuse(self) -> None:
        raise GatewayFault("store_unavailable", "The store cannot accept more writes now. Try again shortly.")

    async def _hang(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                while self.broken:
                    await asyncio.sleep(0.1)
        if self.broken:
            await self._refuse()


class SlowCommits:
    """Reports each commit `delay_s` after it was made, as a slow disk or network does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delay_s = 0.0
        self._held = 0
        finish = writer.Writer._finish_batch

        def finish_later(one: writer.Writer, batch: Batch, problem: str | None) -> None:
            if not self.delay_s:
                finish(one, batch, problem)
                return
            self._held += 1
            asyncio.get_running_loop().call_later(self.delay_s, finish_held, one, batch, problem)

        def finish_held(one: writer.Writer, batch: Batch, problem: str | None) -> None:
            self._held -= 1
            finish(one, batch, problem)

        monkeypatch.setattr(writer.Writer, "_finish_batch", finish_later)
        # The virtual clock stands still while a commit is being made, not while its report is held here.
        monkeypatch.setattr(BatchWriter, "is_committing", property(lambda one: one._is_busy and not self._held))


@contextlib.asynccontextmanager
async def gateway(server: Upstream, **config: Any) -> AsyncIterator[Gateway]:
    async with Gateway(config, {"notes": server}) as gate:
        yield gate


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("how", ["busy", "hanging", "full_disk"])
@virtual_time
async def test_caller_is_told_in_time_and_the_late_result_is_recorded(
    generation: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, how)
    async with gateway(server) as gate:
        caller = await gate.caller(generation)
        call = caller.begin_call("notes__slow", {"seconds": 70})
        await gate.advance(40)
        store.broken = True
        await gate.advance(REPLY_S - 40 - 0.1)
        assert not call.is_done
        await gate.advance(0.2)
        data = error_of(call.reply)
        assert (data["error_type"], data["executed"], data["tool"]) == ("store_unavailable", "maybe", "notes__slow")
        assert "tg_" not in call.reply.body.decode()
        assert store.asked > 0
        # The tool ends while the store is away.
        await gate.advance(60)
        store.broken = False
        await gate.advance(20)
        (row,) = await rows(gate)
        assert row["state"] == "completed"
        read = await caller.call("get_task_result", {"task_id": row["id"]})
        assert "is done" in read.text
        assert server.count("slow") == 1


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_late_failure_is_recorded_as_well(generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    async with gateway(server) as gate:
        caller = await gate.caller(generation)
        store.broken = True
        call = caller.begin_call("notes__breaks")
        await gate.advance(REPLY_S + 0.1)
        assert error_of(call.reply)["executed"] == "maybe"
        await gate.advance(60)
        store.broken = False
        await gate.advance(20)
        (row,) = await rows(gate)
        assert (row["state"], row["executed"]) == ("outcome_unknown", "maybe")
        assert server.count("breaks") == 1


@virtual_time
async def test_a_short_fault_of_the_store_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    async with gateway(server) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("notes__slow")
        await gate.advance(PROMOTE_S + 2)
        store.broken = False
        assert "continues as task tg_" in (await call.done()).text
        assert call.took < REPLY_S


@virtual_time
async def test_a_fault_in_accepting_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "faulty")
    async with gateway(server) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("notes__slow")
        await gate.advance(PROMOTE_S + 0.1)
        assert error_of(call.reply)["executed"] == "maybe"
        await gate.advance(60)
        assert server.count("slow") == 1
        # Its outcome is in the history of plain calls instead.
        history = (await gate.operator("GET", "/api/v1/history?text=slow")).json()
        assert [row["outcome"] for row in history["rows"]] == ["ok"]


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_queued_call_is_given_up_if_the_store_cannot_take_it(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "hanging")
    config = {"servers": {"notes": {"budgets": {"max_concurrency": 1}}}}
    async with gateway(server, **config) as gate:
        caller = await gate.caller(generation)
        caller.begin_call("notes__slow", {"seconds": 300, "name": "first"})
        await gate.advance(1)
        waiting = caller.begin_call("notes__slow", {"name": "second"})
        await gate.advance(PROMOTE_S - 0.5)
        store.broken = True
        await gate.advance(STORED_WITHIN_S + 1)
        data = error_of(await waiting.done())
        assert (data["error_type"], data["executed"], data["tool"]) == ("store_unavailable", "no", "notes__slow")
        store.broken = False
        await gate.advance(120)
        assert server.count("slow") == 1
        assert len(await rows(gate)) == 1


@virtual_time
async def test_execute_tool_answers_in_time_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "full_disk")
    async with gateway(server, scopes={"default": {"mode": "facade", "default_servers": ["*"]}}) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("execute_tool", {"server": "notes", "tool": "slow", "args": {}, "timeout_ms": 500})
        await gate.advance(0.5 + STORED_WITHIN_S + 0.2)
        data = tool_error_of(call.reply)
        assert (data["error_type"], data["executed"], data["tool"]) == ("store_unavailable", "maybe", "notes__slow")
        store.broken = False
        await gate.advance(70)
        assert [row["state"] for row in await rows(gate)] == ["completed"]


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_drain_answers_calls_that_the_store_cannot_take(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway ends within its drain time although the store is away, and each caller has one reply."""
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    async with gateway(server, limits={"drain_timeout": "10s"}) as gate:
        caller = await gate.caller(generation)
        store.broken = True
        answered = caller.begin_call("notes__slow", {"seconds": 300})
        await gate.advance(30)
        begun = caller.begin_call("notes__slow", {"seconds": 300})
        await gate.advance(20.5)
        assert error_of(answered.reply)["executed"] == "maybe"
        stopping = asyncio.create_task(gate.stop())
        data = error_of(await begun.done())
        assert (data["executed"], begun.took <= 61) == ("maybe", True)
        await stopping
        store.broken = False
        await gate.start()
        assert await rows(gate) == []


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_call_is_one_task_although_its_first_commit_was_reported_late(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes are given up after their own time limit and committed after that. None of them makes a task of its own."""
    server, commits = slow_server(), SlowCommits(monkeypatch)
    async with gateway(server) as gate:
        caller = await gate.caller(generation)
        call = caller.begin_call("notes__slow", {"seconds": 200})
        await gate.advance(PROMOTE_S - 1)
        commits.delay_s = 40
        await gate.advance(STORED_WITHIN_S + 15)
        assert error_of(call.reply)["executed"] == "maybe"
        await gate.advance(30)
        commits.delay_s = 0
        await gate.advance(200)
        assert [(row["state"], row["executed"]) for row in await rows(gate)] == [("completed", "yes")]
        assert server.count("slow") == 1


@virtual_time
async def test_a_record_that_is_being_committed_at_a_shutdown_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    server, commits = slow_server(), SlowCommits(monkeypatch)
    async with gateway(server, limits={"drain_timeout": "3s"}) as gate:
        caller = await gate.caller()
        call = caller.begin_call("notes__slow", {"seconds": 200})
        await gate.advance(PROMOTE_S - 1)
        commits.delay_s = 15
        await gate.advance(STORED_WITHIN_S + 2)
        assert error_of(call.reply)["executed"] == "maybe"
        stopping = asyncio.create_task(gate.stop())
        await gate.advance(4)
        commits.delay_s = 0
        await stopping
        await gate.start()
        await gate.advance(5)
        assert [(row["state"], row["executed"]) for row in await rows(gate)] == [("outcome_unknown", "maybe")]
        assert server.count("slow") == 1


@pytest.mark.parametrize("seconds", [120, 1200])
@virtual_time
async def test_a_call_is_stored_after_an_outage_of_any_length(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    warnings: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, **_: warnings.append(text))
    hour = 3_600_000
    config = {"servers": {"notes": {"budgets": {"tool_timeout_ms": hour}}}, "tasks": {"execution_timeout_ms": hour}}
    async with gateway(server, **config) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("notes__slow", {"seconds": seconds})
        await gate.advance(REPLY_S + 0.1)
        assert error_of(call.reply)["executed"] == "maybe"
        await gate.advance(1800)
        asked, minutes = store.asked, (REPLY_S + 1800 - PROMOTE_S) / 60
        assert sum("runs of tasks wait" in text for text in warnings) <= minutes + 1
        # Twice a second in the first minute, later every five seconds.
        assert asked < 600
        store.broken = False
        await gate.advance(10)
        assert [(row["state"], row["executed"]) for row in await rows(gate)] == [("completed", "yes")]
        assert server.count("slow") == 1


@virtual_time
async def test_a_stopped_gateway_no_longer_asks_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool has ended, and its result waits for the store."""
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    async with gateway(server, limits={"drain_timeout": "3s"}) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("notes__slow", {"seconds": 55})
        await gate.advance(60)
        assert call.is_done
        await gate.stop()
        asked = store.asked
        await gate.start()
        await gate.advance(60)
        assert store.asked == asked


@virtual_time
async def test_a_drain_hands_over_sent_calls() -> None:
    async with gateway(slow_server(), limits={"drain_timeout": "25s"}) as gate:
        caller = await gate.caller()
        call = caller.begin_call("notes__slow", {"seconds": 55})
        await gate.advance(40)
        stopping = asyncio.create_task(gate.stop())
        assert "tg_" in (await call.done()).text
        await stopping
        await gate.start()
        assert [row["state"] for row in await rows(gate)] == ["completed"]


# The limit


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_at_the_limit_only_what_would_open_another_task_is_refused(generation: str) -> None:
    server = slow_server()
    config = {
        "limits": {"open_tasks_per_caller": 3},
        "governance": {"rules": [{"match": "breaks", "action": "approve", "approval": "ops"}]},
        "approval": {"ops": {"channels": ["inbox"], "timeout": "10m"}},
    }
    async with gateway(server, **config) as gate:
        stateful = generation == "2025"
        caller = await gate.caller(generation, capabilities=TASKS if stateful else TASKS_EXTENSION, client="one")
        meta = {} if stateful else {"_meta": {"taskgate/client": "one"}}
        task = {"task": {}} if stateful else {"_meta": {"taskgate/client": "one", "taskgate/task": True}}
        for _ in range(2):
            assert "result" in (await caller.call("notes__slow", {"seconds": 900}, **task)).last
        promoted = [caller.begin_call("notes__slow", {"seconds": 900}, **meta) for _ in range(3)]
        await gate.advance(PROMOTE_S + 1)
        assert all("tg_" in call.reply.body.decode() for call in promoted)
        assert len(await rows(gate)) == 5
        ran = server.count("slow")
        for refused in (
            await caller.call("notes__slow", {"name": "explicit"}, **task),
            await caller.call("notes__breaks", **(task if stateful else meta)),
            await caller.call("notes__slow", {"name": "plain"}, **meta),
        ):
            data = error_of(refused)
            assert (data["error_type"], data["executed"]) == ("overloaded", "no")
            assert (data["limit"], data["limit_value"]) == ("open_tasks_per_caller", 3)
        assert server.count("slow") == ran
        # What only looks at tasks goes on, and so does everybody else.
        tasks = (await caller.call("list_tasks", {}, **meta)).result
        assert "tg_" in str(tasks)
        other = await gate.caller(generation, client="two")
        others = {} if stateful else {"_meta": {"taskgate/client": "two"}}
        assert "is done" in (await other.call("notes__slow", {"seconds": 1}, **others)).text
        # One promoted call ends: there is room for a plain call, although the open tasks are above the limit.
        shown = [row["id"] for row in await rows(gate)]
        assert (await gate.operator("POST", f"/api/v1/tasks/{shown[0]}/cancel", {})).status == 200
        assert "is done" in (await caller.call("notes__slow", {"seconds": 1, "name": "again"}, **meta)).text


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_calls_that_the_store_cannot_take_count_towards_the_limit(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "busy")
    async with gateway(server, limits={"open_tasks_per_caller": 2}) as gate:
        caller = await gate.caller(generation, client="one")
        meta = {} if generation == "2025" else {"_meta": {"taskgate/client": "one"}}
        store.broken = True
        calls = [caller.begin_call("notes__slow", {"seconds": 300}, **meta) for _ in range(3)]
        await gate.advance(REPLY_S + 0.1)
        assert all(error_of(call.reply)["executed"] == "maybe" for call in calls)
        for _ in range(2):
            data = error_of(await caller.call("notes__slow", {"seconds": 1}, **meta))
            assert (data["limit"], data["executed"]) == ("open_tasks_per_caller", "no")
        assert server.count("slow") == 3
        # They still count as tasks, until they end.
        store.broken = False
        await gate.advance(10)
        assert len(await rows(gate)) == 3
        assert error_of(await caller.call("notes__slow", {"seconds": 1}, **meta))["limit"] == "open_tasks_per_caller"
        await gate.advance(300)
        assert "is done" in (await caller.call("notes__slow", {"seconds": 1}, **meta)).text


@virtual_time
async def test_a_call_that_could_not_be_stored_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = slow_server(), BrokenStore(monkeypatch, "faulty")
    async with gateway(server, limits={"open_tasks_per_caller": 1}) as gate:
        caller = await gate.caller()
        store.broken = True
        call = caller.begin_call("notes__slow", {"seconds": 60})
        await gate.advance(PROMOTE_S + 0.1)
        assert error_of(call.reply)["executed"] == "maybe"
        await gate.advance(60)
        assert "is done" in (await caller.call("notes__slow", {"seconds": 1})).text


@virtual_time
async def test_plain_calls_of_a_caller_with_explicit_tasks_alone_go_on() -> None:
    server = slow_server()
    async with gateway(server, limits={"open_tasks_per_caller": 2}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        for _ in range(2):
            await caller.call("notes__slow", {"seconds": 900}, task={})
        assert "is done" in (await caller.call("notes__slow", {"seconds": 1})).text
        call = caller.begin_call("notes__slow", {"seconds": 100})
        await gate.advance(PROMOTE_S + 0.1)
        assert "tg_" in call.reply.text


@virtual_time
async def test_execute_tool_is_promoted_at_the_limit() -> None:
    server = slow_server()
    config = {
        "scopes": {"default": {"mode": "facade", "default_servers": ["*"]}},
        "limits": {"open_tasks_per_caller": 2},
    }
    async with gateway(server, **config) as gate:
        caller = await gate.caller()
        given = {"server": "notes", "tool": "slow", "args": {"seconds": 900}, "timeout_ms": 500}
        calls = [caller.begin_call("execute_tool", given) for _ in range(4)]
        await gate.advance(1)
        assert all("Promoted to task tg_" in call.reply.text for call in calls)
        assert tool_error_of(await caller.call("execute_tool", given))["limit"] == "open_tasks_per_caller"
        assert server.count("slow") == 4


@virtual_time
async def test_a_queued_call_is_promoted_above_the_limit_and_runs_later() -> None:
    server = slow_server()
    config = {
        "servers": {"notes": {"budgets": {"max_concurrency": 1}}},
        "limits": {"open_tasks_per_caller": 1},
    }
    async with gateway(server, **config) as gate:
        caller = await gate.caller()
        calls = [caller.begin_call("notes__slow", {"seconds": 100, "name": str(number)}) for number in range(2)]
        await gate.advance(PROMOTE_S + 1)
        assert all("tg_" in call.reply.text for call in calls)
        await gate.advance(200)
        assert [row["state"] for row in await rows(gate)] == ["completed", "completed"]
        assert server.count("slow") == 2


@virtual_time
async def test_promoted_calls_of_a_tenant_are_limited_together() -> None:
    server = slow_server()
    config = {
        "limits": {"open_tasks_per_tenant": 2},
        "tokens": [token_of("acme", "ann"), token_of("acme", "bob"), token_of("other", "eve")],
    }
    async with gateway(server, **config) as gate:
        ann, bob, eve = [await gate.caller(token=secret(who)) for who in ("ann", "bob", "eve")]
        calls = [ann.begin_call("notes__slow", {"seconds": 900}) for _ in range(3)]
        await gate.advance(PROMOTE_S + 1)
        assert all("tg_" in call.reply.text for call in calls)
        data = error_of(await bob.call("notes__slow", {"seconds": 1}))
        assert (data["limit"], data["counted_for"], data["executed"]) == ("open_tasks_per_tenant", "tenant", "no")
        assert "is done" in (await eve.call("notes__slow", {"seconds": 1})).text


# Calls for which the server creates a task of its own


def server_with_tasks() -> Upstream:
    server = Upstream("2026")

    @server.tool("slow", as_task=True)
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "slow is done"

    return server


@virtual_time
async def test_calls_that_became_tasks_of_their_server_count_towards_the_limit() -> None:
    server = server_with_tasks()
    async with gateway(server, limits={"open_tasks_per_caller": 2}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        meta = {"_meta": {"taskgate/client": "one"}}
        for _ in range(2):
            assert (await caller.call("notes__slow", **meta)).result["resultType"] == "task"
        data = error_of(await caller.call("notes__slow", **meta))
        assert (data["limit"], data["executed"]) == ("open_tasks_per_caller", "no")
        assert server.methods["tools/call"] == 2
        await gate.advance(120)
        assert [row["state"] for row in await rows(gate)] == ["completed", "completed"]
        assert (await caller.call("notes__slow", **meta)).result["resultType"] == "task"


@virtual_time
async def test_task_of_a_server_is_followed_when_the_store_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = server_with_tasks(), BrokenStore(monkeypatch, "busy")
    async with gateway(server) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        store.broken = True
        call = caller.begin_call("notes__slow")
        await gate.advance(STORED_WITHIN_S + 1)
        data = error_of(call.reply)
        assert (data["error_type"], data["executed"], data["tool"]) == ("store_unavailable", "maybe", "notes__slow")
        store.broken = False
        await gate.advance(120)
        assert [(row["state"], row["executed"]) for row in await rows(gate)] == [("completed", "yes")]
        assert server.count("slow") == 1
