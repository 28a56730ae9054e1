"""The harness for virtual time itself: its time, its order, its connections, and a clear error for a test that can never end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from tests.harness.process_state import kept
from tests.virtual_time import EPOCH, Call, Deadlock, Gateway, Upstream, run, the_loop, until, virtual_time, within

from taskgate import clock
from taskgate.telemetry.logs import LEVELS, log, set_up


@virtual_time
async def test_time_jumps_to_the_next_timer_and_stands_still_otherwise() -> None:
    loop, real = the_loop(), time.monotonic()
    began = clock.monotonic()
    await asyncio.sleep(3600)
    assert clock.monotonic() - began == pytest.approx(3600)
    assert clock.wall() == pytest.approx(EPOCH + 3600)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert loop.time() == began + 3600
    assert time.monotonic() - real < 60


@virtual_time
async def test_time_waits_for_a_thread_that_was_given_work() -> None:
    loop, real = the_loop(), time.monotonic()
    under_way = [True]
    loop.outside.append(lambda: under_way[0])
    came = asyncio.Event()

    def work() -> None:
        time.sleep(0.2)
        loop.call_soon_threadsafe(lambda: (under_way.clear(), under_way.append(False), came.set()))

    began = loop.time()
    asyncio.get_running_loop().call_later(1, lambda: None)
    threading.Thread(target=work, daemon=True).start()
    await came.wait()
    assert loop.time() == began
    assert time.monotonic() - real >= 0.2


def test_a_thread_that_virtual_time_did_not_wait_for_is_reported() -> None:
    """Time would have moved on while it worked: how far would depend on how busy the machine is."""

    async def main() -> None:
        came = asyncio.Event()
        worker = threading.Thread(target=the_loop().call_soon_threadsafe, args=(came.set,), name="unregistered")
        worker.start()
        await within(came.wait(), "the thread")
        worker.join()
        await asyncio.sleep(1)

    with pytest.raises(Deadlock, match="'unregistered'"):
        run(main)


def test_programs_log_as_in_a_process_of_their_own_whatever_ran_before() -> None:
    async def how_it_logs() -> tuple[int, bool]:
        return log.minimum, log.as_text

    with kept():
        set_up("error", "text")
        assert run(how_it_logs) == (LEVELS["info"], False)
        assert (log.minimum, log.as_text) == (LEVELS["error"], True)
    assert (log.minimum, log.as_text) == (LEVELS["info"], False)


def test_a_test_that_waits_for_ever_fails_with_the_stack_of_every_task() -> None:
    async def waits_without_end() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="waits_without_end"):
        run(waits_without_end)


def test_a_wait_beside_a_running_gateway_ends_as_well() -> None:
    async def main() -> None:
        async with Gateway() as gate:
            caller = await gate.caller("2025")
            await until(lambda: caller is None, "what never is", seconds=5)

    with pytest.raises(Deadlock, match="what never is"):
        run(main)


def test_a_test_cannot_run_on_for_ever_in_virtual_time() -> None:
    async def main() -> None:
        the_loop().give_up_after(0.2)
        async with Gateway():
            await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="computed too long"):
        run(main)


async def _conversation() -> list[Any]:
    """Something of everything: ids, jitter, commits, a question, a crash."""
    server = Upstream("2025")

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        answer = await call.elicit("Which?")
        return json.dumps(answer)

    seen: list[Any] = []
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        seen.append((await caller.call("notes__slow")).last)
        seen.append(await caller.call_json("list_tasks"))
        await gate.advance(30)
        seen.append(await caller.call_json("get_elicitations"))
        gate.crash()
        await gate.start()
        again = await gate.caller("2025")
        seen += [again.headers, await again.call_json("list_tasks"), the_loop().time(), len(gate.log)]
        seen += [line.event for line in gate.log]
    return seen


def test_the_same_seed_gives_the_same_conversation_and_another_seed_another_one() -> None:
    first = run(_conversation, seed=5)
    assert json.dumps(first) == json.dumps(run(_conversation, seed=5))
    assert json.dumps(first) != json.dumps(run(_conversation, seed=6))


@virtual_time
async def test_a_killed_gateway_does_nothing_more_and_its_store_is_what_was_committed() -> None:
    server = Upstream("2025")
    ended = []

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(100)
        ended.append(call)
        return "done"

    async with Gateway({"servers": {"notes": {"tools": {"slow": {"class": "once"}}}}}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__slow")
        call = caller.begin_call("notes__slow")
        await gate.advance(1)
        lines = len(gate.log)
        gate.crash()
        with pytest.raises(asyncio.IncompleteReadError):
            await call.done()
        await gate.advance(300)
        assert len(gate.log) == lines
        assert gate.life.app.gateway.lifecycle.status.stopping is False
        await gate.start()
        (task,) = (await gate.operator("GET", "/api/tasks")).json()
        assert server.count("slow") == 2
        assert len(ended) == 2
        # A tool that may run only once is not run again: what became of it is not known.
        assert task["state"] == "outcome_unknown", task


@virtual_time
async def test_a_writer_is_paused_while_its_reader_does_not_read() -> None:
    loop, reached = the_loop(), dict[str, Any]()
    loop.network.receive_bytes = 1000

    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = writer.transport
        transport.pause_reading()
        await asyncio.sleep(10)
        transport.resume_reading()
        reached["bytes"] = await reader.read(-1)
        writer.close()

    await asyncio.start_server(slow_reader, "10.1.1.1", 80)
    reader, writer = await asyncio.open_connection("10.1.1.1", 80)
    began = loop.time()
    writer.write(bytes(200_000))
    await writer.drain()
    assert loop.time() - began == pytest.approx(10)
    writer.write_eof()
    assert await within(reader.read(), "the end") == b""
    assert len(reached["bytes"]) == 200_000


@virtual_time
async def test_a_missing_peer_refuses_and_a_silent_peer_does_not_answer() -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("10.1.1.1", 80)
    the_loop().network.stop_answering(("10.1.1.1", 80))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(20):
            await asyncio.open_connection("10.1.1.1", 80)
