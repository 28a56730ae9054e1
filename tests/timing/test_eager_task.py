"""A request is answered in the callback that received it, as far as it waits for nothing but the reply of a server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

import anyio
import pytest

from taskgate.eager_task import EagerTask, ReplyFuture, asyncio_task, continue_in_asyncio_task


class Work:
    """A coroutine, and what became of it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.ended: list[EagerTask] = []
        self.task: EagerTask | None = None

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> EagerTask:
        """Run it as a callback of the loop does: no task is current."""
        self.task = EagerTask(coroutine.__await__(), asyncio.get_running_loop(), self.ended.append, copy_context())
        asyncio.get_running_loop().call_soon(self.task.run)
        return self.task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_coroutine_that_never_waits_runs_in_one_step() -> None:
    work = Work()

    async def answer() -> None:
        assert asyncio.current_task() is work.task
        work.steps.append("answered")

    task = work.begin(answer())
    await asyncio.sleep(0)
    assert (work.steps, work.ended) == (["answered"], [task])


async def test_it_continues_in_the_callback_that_sets_the_reply() -> None:
    work, reply = Work(), ReplyFuture[int]()

    async def answer() -> None:
        work.steps.append(f"got {await reply}")

    def arrived() -> None:
        reply.set_result(7)
        assert work.steps == []
        reply.wake()
        assert work.steps == ["got 7"]
        work.steps.append("arrived")

    task = work.begin(answer())
    asyncio.get_running_loop().call_later(0.01, arrived)
    await asyncio.sleep(0.02)
    assert (work.steps, work.ended) == (["got 7", "arrived"], [task])


async def test_a_reply_that_is_there_already_is_not_waited_for() -> None:
    work, reply = Work(), ReplyFuture[int]()
    reply.set_result(1)

    async def answer() -> None:
        work.steps.append(f"got {await reply}")

    work.begin(answer())
    await asyncio.sleep(0)
    assert work.steps == ["got 1"]


async def test_it_becomes_a_task_when_it_waits_for_anything_else() -> None:
    work, reply = Work(), ReplyFuture[int]()

    async def answer() -> None:
        await reply
        await asyncio.sleep(0.01)
        assert isinstance(asyncio.current_task(), asyncio.Task)
        async with asyncio.timeout(1):
            await asyncio.sleep(0)
        work.steps.append("answered")

    task = work.begin(answer())
    await settled()
    reply.set_result(1)
    asyncio.get_running_loop().call_soon(reply.wake)
    await settled()
    assert isinstance(asyncio_task(task), asyncio.Task)
    await asyncio_task(task)
    await settled()
    assert (work.steps, work.ended) == (["answered"], [task])


async def test_a_timeout_that_began_before_it_became_a_task_ends_it() -> None:
    work, reply = Work(), ReplyFuture[int]()

    async def answer() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reply
        work.steps.append("timed out")

    task = work.begin(answer())
    await asyncio.sleep(0.05)
    assert (work.steps, work.ended, task.cancelling()) == (["timed out"], [task], 0)


@pytest.mark.parametrize("waits_for_reply", [True, False])
async def test_a_cancellation_is_raised_where_it_waits(waits_for_reply: bool) -> None:
    work, reply = Work(), ReplyFuture[int]()

    async def answer() -> None:
        try:
            await (reply if waits_for_reply else asyncio.sleep(5))
        except asyncio.CancelledError as cancelled:
            work.steps.append(str(cancelled.args[0]))
            raise

    task = work.begin(answer())
    await settled()
    assert task.cancel("no longer needed")
    await settled()
    assert (work.steps, work.ended) == (["no longer needed"], [task])
    reply.wake()
    assert work.steps == ["no longer needed"]


async def test_a_cancellation_by_the_coroutine_itself_takes_effect_where_it_waits_next() -> None:
    work, reply = Work(), ReplyFuture[int]()

    async def answer() -> None:
        assert work.task is not None
        work.task.cancel()
        work.steps.append("still runs")
        await reply

    work.begin(answer())
    await settled()
    assert (work.steps, work.ended) == (["still runs"], [work.task])


async def test_a_failure_is_reported_to_the_loop() -> None:
    work, reported = Work(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    async def answer() -> None:
        raise RuntimeError("a bug")

    work.begin(answer())
    await settled()
    assert [str(context["exception"]) for context in reported] == ["a bug"]
    assert work.ended == [work.task]


async def test_called_by_a_task_it_continues_in_a_task_of_its_own() -> None:
    work = Work()

    async def answer() -> None:
        work.steps.append("answered")

    task = EagerTask(answer().__await__(), asyncio.get_running_loop(), work.ended.append, copy_context())
    task.run()
    assert work.steps == []
    await task.as_task()
    assert work.steps == ["answered"]


@pytest.mark.parametrize("waits_for", ["children", "task", "slot"])
async def test_a_cancellation_right_after_it_became_a_task_cancels_what_it_waits_for(waits_for: str) -> None:
    """The new task has not begun to wait when another callback of the same iteration cancels it."""
    work, slots = Work(), asyncio.Semaphore(0)

    async def child() -> None:
        await asyncio.sleep(0.01)
        work.steps.append("ran to its end")

    async def answer() -> None:
        if waits_for == "children":
            await asyncio.gather(child(), child())
        elif waits_for == "task":
            await asyncio.create_task(child())
        else:
            await slots.acquire()
        work.steps.append("went on")

    task = work.begin(answer())
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(0.03)
    assert (work.steps, work.ended) == ([], [task])
    assert slots.locked()


async def test_a_cancellation_supersedes_a_failure_that_was_not_received_yet(caplog: pytest.LogCaptureFixture) -> None:
    work, broken = Work(), list[ReplyFuture[int]]()

    async def answer() -> None:
        broken.append(ReplyFuture())
        await broken[0]

    task = work.begin(answer())
    await asyncio.sleep(0)

    def break_and_cancel() -> None:
        reply = broken.pop()
        reply.set_exception(OSError("the connection broke"))
        asyncio.get_running_loop().call_soon(reply.wake)
        task.cancel()

    asyncio.get_running_loop().call_soon(break_and_cancel)
    await settled()
    gc.collect()
    assert work.ended == [task]
    assert caplog.text == ""


async def test_after_its_end_it_is_neither_cancelled_nor_continued() -> None:
    work = Work()

    async def answer() -> None:
        work.steps.append("answered")

    task = work.begin(answer())
    await settled()
    assert not task.cancel()
    with pytest.raises(RuntimeError, match="ended"):
        task.as_task()
    await settled()
    assert (work.steps, work.ended) == (["answered"], [task])


async def test_a_library_that_needs_an_asyncio_task_can_be_used() -> None:
    work = Work()

    async def answer() -> None:
        await continue_in_asyncio_task()
        with anyio.fail_after(1):
            await anyio.sleep(0)
        work.steps.append("answered")

    work.begin(answer())
    await asyncio.sleep(0.05)
    assert work.steps == ["answered"]
