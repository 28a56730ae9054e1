"""Run one coroutine on a virtual loop, with seeded randomness and nothing left behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

from tests.virtual_time.conditions import virtual_conditions
from tests.virtual_time.loop import VirtualLoop

T = TypeVar("T")
Test = Callable[..., Coroutine[Any, Any, None]]


def run(main: Callable[[], Awaitable[T]], seed: int = 1) -> T:
    """The result of `main`, run in virtual time. The same seed gives the same run."""
    with virtual_conditions(seed) as new_loop:
        loop = new_loop()
        asyncio.set_event_loop(loop)
        try:
            try:
                return loop.run_until_complete(_awaited(main))
            finally:
                _end_what_is_left(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _awaited(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


@overload
def virtual_time(test: Test, /) -> Callable[..., None]: ...
@overload
def virtual_time(*, seed: int = 1) -> Callable[[Test], Callable[..., None]]: ...
def virtual_time(test: Test | None = None, /, *, seed: int = 1) -> Any:
    """Make a test of an `async def`: it runs in virtual time. Fixtures are given as to any other test."""
    if test is None:
        return functools.partial(_on_the_loop, seed=seed)
    return _on_the_loop(test, seed=seed)


def _on_the_loop(test: Test, *, seed: int) -> Callable[..., None]:
    @functools.wraps(test)
    def runs(*args: Any, **fixtures: Any) -> None:
        run(lambda: test(*args, **fixtures), seed)

    return runs


def _end_what_is_left(loop: VirtualLoop) -> None:
    """Cancel what the test left running. A task that will not end must not hang the whole run."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=60))
    loop.run_until_complete(loop.shutdown_asyncgens())
