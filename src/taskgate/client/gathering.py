"""Many calls, a few at a time: `gather` starts them, waits for their results and keeps their order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Iterator
from typing import Literal, overload

from taskgate.client.errors import ClientError
from taskgate.client.results import ToolResult
from taskgate.client.task_handle import TaskHandle

Work = TaskHandle | Awaitable[TaskHandle]
DEFAULT_LIMIT = 10


@overload
async def gather(
    work: Iterable[Work], *, limit: int = ..., timeout: float | None = ..., return_errors: Literal[False] = ...
) -> list[ToolResult]: ...


@overload
async def gather(
    work: Iterable[Work], *, limit: int = ..., timeout: float | None = ..., return_errors: bool
) -> list[ToolResult | ClientError]: ...


async def gather(
    work: Iterable[Work], *, limit: int = DEFAULT_LIMIT, timeout: float | None = None, return_errors: bool = False
) -> list[ToolResult] | list[ToolResult | ClientError]:
    """The results of handles, or of calls that give one, in the order of `work`.

    At most `limit` are waited for at once. The next item is taken from `work` when one has ended, so
    `(session.call_tool_as_task(...) for item in items)` starts no more than `limit` tasks at a time. `timeout` is that of each
    result. The first error is raised, unless `return_errors` puts each into its place; tasks that were started go on at the server.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1")
    source = enumerate(work)
    found: dict[int, ToolResult | ClientError] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(limit):
                group.create_task(_worker(source, found, timeout, return_errors))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        _close(source)
    return [found[number] for number in sorted(found)]


async def _worker(
    source: Iterator[tuple[int, Work]],
    found: dict[int, ToolResult | ClientError],
    timeout: float | None,
    return_errors: bool,
) -> None:
    for number, item in source:
        try:
            handle = item if isinstance(item, TaskHandle) else await item
            found[number] = await handle.result(timeout)
        except ClientError as error:
            if not return_errors:
                raise
            found[number] = error


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The error itself: which one of several that happened at once does not matter to the caller."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _close(source: Iterator[tuple[int, Work]]) -> None:
    """Calls of a list that were never begun would be reported as forgotten."""
    for _, item in source:
        if inspect.iscoroutine(item):
            item.close()
