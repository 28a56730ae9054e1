"""Servers that violate the protocol: each violation results in a typed error or the right result, and never in a hang."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from taskgate.client import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    Generation,
    InvalidReply,
    ServerUnreachable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskStatus,
    TaskUpdate,
    TaskVanished,
    connect,
)

pytestmark = pytest.mark.timeout(30)
TIMEOUT = 120.0
BOTH = pytest.mark.parametrize("generation", ["stateful", "stateless"])


def faulty_session(url: str | list[str], generation: str, **settings: Any) -> Any:
    return connect(
        url, **{"generation": generation, "default_poll_interval": 0.25, "request_timeout": TIMEOUT, **settings}
    )


FAULTS: dict[str, type[ClientError]] = {
    "unknown_status": InvalidReply,
    "no_status": InvalidReply,
    "other_task": InvalidReply,
    "vanish": TaskVanished,
    "expire": TaskExpired,
    "cancelled": TaskCancelled,
}


@BOTH
async def test_every_inconsistent_task_reply_is_a_typed_error(faulty: str, generation: str) -> None:
    """Bad input: servers that lie about status, vanish or expire early."""
    async with faulty_session(faulty, generation) as session:
        handles = [await session.call_tool_as_task(tool) for tool in FAULTS]
        ends = await asyncio.gather(*(handle.result(TIMEOUT) for handle in handles), return_exceptions=True)
        assert [type(end) for end in ends] == list(FAULTS.values())
        assert session.active_tasks == {}


@BOTH
async def test_a_lost_task_ends_its_updates_with_the_same_error(faulty: str, generation: str) -> None:
    async with faulty_session(faulty, generation) as session:
        handle = await session.call_tool_as_task("vanish")
        with pytest.raises(TaskVanished):
            [update async for update in handle.updates()]


@BOTH
async def test_a_valid_result_after_errors_is_returned(faulty: str, generation: str) -> None:
    """Servers that are unavailable or reply incorrectly for some time."""
    async with faulty_session(faulty, generation) as session:
        tools = ("honest", "rubbish_then_fine", "progressing")
        handles = [await session.call_tool_as_task(tool) for tool in tools]
        ends = await asyncio.gather(*(handle.result(TIMEOUT) for handle in handles))
        assert [end.text for end in ends] == ["true result"] * 3


@BOTH
async def test_a_terminal_status_is_final(faulty: str, generation: str) -> None:
    """Bad input: servers that go back from terminal."""
    async with faulty_session(faulty, generation) as session:
        handle = await session.call_tool_as_task("back_from_terminal")
        assert (await handle.result(TIMEOUT)).text == "true result"
        handle.observe(await session.get_task(handle.task_id))
        assert handle.status is TaskStatus.COMPLETED
        assert handle.contradictions == 1
        assert (await handle.result(TIMEOUT)).text == "true result"


async def test_a_failed_task_with_an_empty_success_is_a_failure(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        handle = await session.call_tool_as_task("empty_success")
        with pytest.raises(TaskFailed, match="the worker crashed"):
            await handle.result(TIMEOUT)


async def test_a_completed_task_that_never_returns_its_result_times_out(faulty: str) -> None:
    async with faulty_session(faulty, "stateful", request_timeout=0.5) as session:
        # Only what never comes may run out of time.
        await session.list_tools(timeout=TIMEOUT)
        handle = await session.call_tool_as_task("result_hangs", timeout=TIMEOUT)
        with pytest.raises(DeadlineExceeded):
            await handle.result(TIMEOUT)


async def test_a_completed_task_without_stored_result_is_a_vanished_task(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        handle = await session.call_tool_as_task("result_gone")
        with pytest.raises(TaskVanished):
            await handle.result(TIMEOUT)


async def test_a_completed_task_without_its_result_is_an_invalid_reply(faulty: str) -> None:
    async with faulty_session(faulty, "stateless") as session:
        handle = await session.call_tool_as_task("no_result")
        with pytest.raises(InvalidReply):
            await handle.result(TIMEOUT)


async def test_a_result_that_comes_while_the_status_says_otherwise_counts(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        handle = await session.call_tool_as_task("early_result")
        assert (await handle.result(TIMEOUT)).text == "true result"
        assert handle.contradictions >= 1


async def test_an_unrequested_task_is_followed_by_a_plain_call(faulty: str) -> None:
    """Bad input: servers that return a task that was not requested."""
    async with faulty_session(faulty, "stateful") as session:
        assert (await session.call_tool("unasked_task", timeout=TIMEOUT)).text == "true result"


@BOTH
async def test_an_endless_task_ends_at_the_callers_deadline(faulty: str, generation: str) -> None:
    async with faulty_session(faulty, generation) as session:
        handle = await session.call_tool_as_task("forever")
        with pytest.raises(DeadlineExceeded):
            await handle.result(0.4)
        assert (await handle.cancel()).status is TaskStatus.CANCELLED


@BOTH
async def test_polls_follow_the_interval_of_each_reply(faulty: str, generation: str) -> None:
    """Bad input: servers that change their poll interval."""
    async with faulty_session(faulty, generation) as session:
        gaps = [1.0, 0.0]
        # A busy machine makes gaps longer, never shorter: some round shows that the first was not as long as the second.
        while gaps[1] <= 1.8 * gaps[0]:
            handle = await session.call_tool_as_task("changing_interval")
            await handle.result(TIMEOUT)
            gaps = json.loads((await session.call_tool("polls", {"taskId": handle.task_id})).text)
            # 250 ms, then 700 ms, then the default for a negative one (250 ms here), then 250 ms again.
            assert len(gaps) == 4
            assert all(low <= gap for gap, low in zip(gaps, (0.24, 0.69, 0.24, 0.24), strict=True))


@BOTH
async def test_a_busy_server_is_polled_again_after_retry_after(faulty: str, generation: str) -> None:
    async with faulty_session(faulty, generation) as session:
        handle = await session.call_tool_as_task("busy")
        assert (await handle.result(TIMEOUT)).text == "true result"
        gaps = json.loads((await session.call_tool("polls", {"taskId": handle.task_id})).text)
        assert gaps[0] >= 0.95


@BOTH
async def test_a_warning_comes_before_a_task_expires(faulty: str, generation: str) -> None:
    warned: list[TaskUpdate] = []
    async with faulty_session(faulty, generation, on_expiry=warned.append, expiry_warning=30) as session:
        handle = await session.call_tool_as_task("short_lived")
        # Most of its minute is over; the warning is due in a second, when the last fifth begins.
        handle._expiry._begun -= 47
        async with asyncio.timeout(TIMEOUT):
            async for update in handle.updates():
                if update.warning:
                    break
        assert update.expires_in is not None
        assert 0 < update.expires_in <= 12
        assert warned == [update]


async def test_a_late_response_is_ignored_after_the_timeout(faulty: str, faulty_command: list[str]) -> None:
    """Bad input: servers that answer late."""
    for target in (faulty, faulty_command):
        async with faulty_session(target, "stateful") as session:
            with pytest.raises(DeadlineExceeded):
                await session.call_tool("late", {"seconds": 0.6}, timeout=0.2)
            assert (await session.call_tool("late", {"seconds": 0.6}, timeout=TIMEOUT)).text == "true result"


@BOTH
async def test_a_duplicate_response_is_ignored(faulty: str, faulty_command: list[str], generation: str) -> None:
    """Bad input: servers that answer twice."""
    for target in (faulty, faulty_command):
        async with faulty_session(target, generation) as session:
            assert (await session.call_tool("twice", {"text": "a"})).text == "a"
            assert (await session.call_tool("echo", {"text": "b"})).text == "b"


async def test_integers_of_any_size_are_preserved(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        result = await session.call_tool("big_integer")
        assert result.structured_content == {"n": 2**100 + 1, "f": 1.5}


async def test_a_crashed_program_is_reported_with_its_stderr(faulty_command: list[str]) -> None:
    async with faulty_session(faulty_command, "stateful") as session:
        with pytest.raises(ConnectionLost, match="I am tired"):
            await session.call_tool("die")
        with pytest.raises(ConnectionLost):
            await session.call_tool("echo", {"text": "x"})


async def test_a_task_is_given_up_when_its_server_stays_unavailable(faulty_command: list[str]) -> None:
    """Bad input: servers that vanish for good."""
    async with faulty_session(faulty_command, "stateful", give_up_after=0.5) as session:
        handle = await session.call_tool_as_task("forever")
        with pytest.raises(ConnectionLost):
            await session.call_tool("die")
        with pytest.raises(ServerUnreachable):
            await handle.result(TIMEOUT)


async def test_all_pages_of_tasks_are_listed(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        made = [(await session.call_tool_as_task("forever")).task_id for _ in range(5)]
        assert set(made) <= {task.task_id for task in await session.list_tasks()}


async def test_the_suggested_interim_message_is_kept(faulty: str) -> None:
    async with faulty_session(faulty, "stateful") as session:
        handle = await session.call_tool_as_task("honest")
        assert handle.immediate_response == "I started it."


@BOTH
async def test_a_status_the_server_pushes_makes_polling_unnecessary(faulty_command: list[str], generation: str) -> None:
    async with faulty_session(faulty_command, generation) as session:
        handle = await session.call_tool_as_task("pushed")
        assert handle.task.poll_interval == 60_000
        assert (await handle.result(TIMEOUT)).text == "true result"
        assert json.loads((await session.call_tool("polls", {"taskId": handle.task_id})).text) == []


SLOW_TO_START = """
import json, sys, time
time.sleep(0.5)

for line in sys.stdin:
    asked = json.loads(line)

    if asked["method"] == "server/discover":
        said = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}}
    else:
        said = {"error": {"code": -32022, "message": "no handshake here", "data": {"supported": ["2026-07-28"]}}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


async def test_a_stateless_server_that_is_slow_to_start_is_still_found() -> None:
    async with connect([sys.executable, "-c", SLOW_TO_START], probe_timeout=0.05) as session:
        assert session.generation is Generation.STATELESS
