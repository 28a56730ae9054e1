"""`gather`: run many calls with limited concurrency, and return their results in order."""

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
    """Return the results of task handles, or of calls that return one, in the order of `work`.

    At most `limit` run at once. The next item is taken from `work` when one has ended, so
    `(session.call_tool_as_task(...) for item in items)` starts at most `limit` tasks at a time. `timeout` applies to each result.
    The first error is raised, or, with `return_errors`, returned in its place. Started tasks continue at the server.
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
        raise first_error(errors) from None
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


def first_error(errors: BaseExceptionGroup) -> BaseException:
    """Return the first error of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _close(source: Iterator[tuple[int, Work]]) -> None:
    """Close coroutines that were never awaited, which would cause warnings."""
    for _, item in source:
        if inspect.iscoroutine(item):
            item.close()
