"""Everything that the gateway does after a time, at that time: not a step sooner, and by itself."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, the_loop, until, virtual_time

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import ContactLost, ErrorReceived, ResultReceived, TransitionEvent
from taskgate.gateway.list_hints import ListHints
from taskgate.gateway.other_gateways import follow_topic
from taskgate.ports.topics import LISTS, MISSED, TASKS
from taskgate.store.operation import Operation
from taskgate.store.operations.upkeep import Recover
from taskgate.store.postgres.wakeups import MAX_NAMES, Wakeups
from taskgate.upstreams.backoff import FIRST_S, LONGEST_S

APPROVING = {"governance": {"rules": [{"match": "*", "action": "approve"}]}}


@virtual_time
async def test_a_session_ends_after_thirty_idle_minutes_and_an_open_stream_keeps_it() -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        idle, listening = await gate.caller("2025"), await gate.caller("2025")
        stream = await listening.listen()
        await gate.advance(29 * 60)
        assert (await idle.call("notes__echo")).status == 200
        await gate.advance(29 * 60)
        assert (await idle.request("ping")).status == 200
        await gate.advance(31 * 60)
        assert (await idle.request("ping")).status == 404
        assert (await listening.request("ping")).status == 200
        assert not stream.is_done


@virtual_time
async def test_a_call_is_denied_unsent_after_ten_minutes_without_approval() -> None:
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__echo", {"a": 1})).result
        await gate.advance(595)
        assert (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result["status"] == "working"
        assert len((await gate.operator("GET", "/api/approvals")).json()) == 1
        await gate.advance(10)
        shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert shown["status"] == "failed"
        assert server.count() == 0


@virtual_time
async def test_an_approval_in_the_last_second_still_counts() -> None:
    server = Upstream()
    async with Gateway({**APPROVING, "tasks": {"execute_on": "approval"}}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__echo", {"a": 1})).result
        await gate.advance(580)
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        reply = await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})
        assert reply.status == 200, reply.body
        await gate.advance(1)
        shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert shown["status"] == "completed"
        assert server.count("echo") == 1


@virtual_time
async def test_a_finished_task_is_deleted_after_its_ttl() -> None:
    server = Upstream()

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "done"

    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow")).result
        assert handle["ttlMs"] == 600_000
        await gate.advance(580)
        assert (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result["status"] == "completed"
        await gate.advance(20)
        assert "error" in (await caller.request("tasks/get", {"taskId": handle["taskId"]})).last
        assert server.count("slow") == 1


@virtual_time
async def test_a_lost_server_is_retried_with_backoff_until_it_is_back() -> None:
    server = Upstream("2025")
    tried: list[float] = []
    async with Gateway({}, {"notes": server}) as gate:
        loop = the_loop()
        caller = await gate.caller("2026")
        await caller.tools()
        await server.stop()
        loop.network.on_connect = lambda address: tried.append(loop.time()) if address[1] == 8000 else None
        await gate.advance(1200)
        pauses = [later - sooner for sooner, later in itertools.pairwise(tried)]
        # Full jitter: each pause is anything up to a bound that doubles from half a second to a minute.
        assert max(pauses) > LONGEST_S / 2
        assert all(pause <= min(LONGEST_S, FIRST_S * 2 ** (number + 1)) for number, pause in enumerate(pauses))
        assert len(tried) > 1200 / LONGEST_S
        refused = await caller.call("notes__echo")
        assert refused.result["_meta"]["taskgate/error"]["executed"] == "no", refused.last
        await server.start()
        back = loop.time()
        await until(lambda: server.methods["initialize"] > 1, "the gateway comes back")
        assert loop.time() - back <= LONGEST_S
        assert (await caller.call("notes__echo", {"a": 1})).text == '{"a": 1}'


@virtual_time
async def test_a_servers_own_task_is_polled_at_its_interval() -> None:
    server = Upstream("2026")

    @server.tool("slow", as_task=True)
    async def slow(call: Call) -> str:
        await call.sleep(20.5)
        return "done"

    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow")).result
        assert handle["status"] == "working"
        await gate.advance(30)
        # Its pollIntervalMs is 1000: twenty times while it works, and once more to find it done.
        assert 20 <= server.methods["tasks/get"] <= 23
        shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert shown["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize(("tool", "minimum"), [("notes__slow", 1000), ("notes__held", 15000)])
@virtual_time
async def test_task_replies_contain_the_poll_interval(tool: str, minimum: int) -> None:
    server = Upstream()

    @server.tool("slow")
    @server.tool("held")
    async def slow(call: Call) -> str:
        await call.sleep(600)
        return json.dumps(call.arguments)

    rules = {"governance": {"rules": [{"match": "held", "action": "approve"}]}}
    async with Gateway(rules, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call(tool)).result
        assert handle["pollIntervalMs"] == minimum


@virtual_time
async def test_changes_of_other_gateways_are_read_while_hints_keep_arriving() -> None:
    """A hint that was lost is not among those that come, however many do."""
    wakeups, seen = Wakeups(), list[frozenset[str] | None]()

    async def act(names: frozenset[str] | None) -> None:
        seen.append(names)

    looking = asyncio.create_task(follow_topic(wakeups, "tasks", act))
    for number in range(40):
        wakeups.announce("tasks", [f"t{number}"])
        await asyncio.sleep(0.5)
    looking.cancel()
    assert [names for names in seen if names is not None] == [frozenset({f"t{number}"}) for number in range(40)]
    assert seen.count(None) in (9, 10)


@virtual_time
async def test_changes_of_other_gateways_are_read_while_a_hint_is_always_pending() -> None:
    """A gateway that is busy with hints never finds that none came in time."""
    wakeups, looks = Wakeups(), list[float]()

    async def act(names: frozenset[str] | None) -> None:
        if names is None:
            looks.append(clock.monotonic())
        wakeups.announce("tasks", ["next"])
        await asyncio.sleep(0.1)

    began = clock.monotonic()
    looking = asyncio.create_task(follow_topic(wakeups, "tasks", act))
    wakeups.announce("tasks", ["first"])
    await asyncio.sleep(20)
    looking.cancel()
    assert len(looks) >= 5
    assert all(later - sooner < 4 for sooner, later in itertools.pairwise([began, *looks]))


@virtual_time
async def test_lists_announced_at_another_gateway_are_fetched_at_once_and_then_at_intervals() -> None:
    """A server may give every gateway another list each time: they must not drive each other for ever."""
    asked = list[tuple[float, str, frozenset[EntryKind]]]()
    hints = ListHints(lambda server, kinds: asked.append((clock.monotonic() - began, server, frozenset(kinds))))
    began = clock.monotonic()
    for _ in range(100):
        hints.add("books", {EntryKind.TOOL})
        hints.add("books", {EntryKind.PROMPT})
        await asyncio.sleep(0.1)
    hints.add("notes", ())
    times = [at for at, server, _ in asked if server == "books"]
    assert times[:5] == [0.0, 0.0, pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.2)]
    assert all(later - earlier >= 1.7 for earlier, later in itertools.pairwise(times[4:]))
    assert 9 <= len(times) <= 10, "five at once, and one every two seconds"
    assert asked[-1][1] == "notes", "no server waits for another one"
    assert asked[6][2] == {EntryKind.TOOL, EntryKind.PROMPT}, "what came meanwhile is not lost"
    before = len(asked)
    hints.close()
    await asyncio.sleep(10)
    assert len(asked) == before


@virtual_time
async def test_a_run_whose_end_cannot_be_stored_is_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that broke the run also prevents storing its end for a while: the task is not left without an owner."""
    server = Upstream()
    async with Gateway({}, {"notes": server}) as gate:
        records = gate.life.app.gateway.console.calls.tasks.records
        advance, broken = records.advance, [True]

        async def breaks(task_id: str, event: TransitionEvent, **more: Any) -> Task | None:
            if broken[0] and isinstance(event, ResultReceived | ErrorReceived | ContactLost):
                raise RuntimeError("broken by the test")
            return await advance(task_id, event, **more)

        write = records.store.do

        async def recovery_breaks(operation: Operation[Any]) -> Any:
            if broken[0] and isinstance(operation, Recover):
                raise RuntimeError("broken by the test")
            return await write(operation)

        monkeypatch.setattr(records, "advance", breaks)
        monkeypatch.setattr(records.store, "do", recovery_breaks)
        caller = await gate.caller("2025")
        handle = (await caller.call("notes__echo", {"a": 1}, task={"ttl": 600_000})).result["task"]
        await gate.advance(5)
        assert (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result["status"] == "working"
        broken[0] = False
        await gate.advance(5)
        shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert shown["status"] == "failed"
        assert server.count() == 1


@virtual_time
async def test_a_missed_notification_is_distinguished_from_a_regular_full_read() -> None:
    wakeups, seen = Wakeups(), dict[str, list[frozenset[str] | None]]()

    def looking(topic: str) -> asyncio.Task[None]:
        async def act(names: frozenset[str] | None) -> None:
            seen.setdefault(topic, []).append(names)

        return asyncio.create_task(follow_topic(wakeups, topic, act))

    loops = [looking(topic) for topic in (LISTS, TASKS, MISSED)]
    await asyncio.sleep(0.1)
    wakeups.announce("", [])
    await asyncio.sleep(0.1)
    assert seen == {LISTS: [None], TASKS: [None]}, "the first connection: there was no subscriber before"
    wakeups.announce("", [])
    wakeups.announce(MISSED, [])
    await asyncio.sleep(0.1)
    assert seen == {LISTS: [None, None], TASKS: [None, None], MISSED: [frozenset()]}
    for topic in (LISTS, TASKS):
        wakeups.announce(topic, [f"n{number}" for number in range(MAX_NAMES + 1)])
        await asyncio.sleep(0.1)
    assert seen == {LISTS: [None] * 3, TASKS: [None] * 3, MISSED: [frozenset()] * 3}
    for loop in loops:
        loop.cancel()
