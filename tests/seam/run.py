"""Run one coroutine on a virtual loop, with seeded randomness and nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import functools
import random
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, overload
from unittest.mock import patch

from tests.seam.loop import VirtualLoop

from taskgate import clock

T = TypeVar("T")
Test = Callable[..., Coroutine[Any, Any, None]]


def run(main: Callable[[], Awaitable[T]], seed: int = 1) -> T:
    """The result of `main`, run in virtual time. The same seed gives the same run."""
    loop = VirtualLoop()
    restore_clock = clock.install(loop.time, loop.wall)
    interval = sys.getswitchinterval()
    try:
        with seeded(seed):
            asyncio.set_event_loop(loop)
            try:
                return loop.run_until_complete(_awaited(main))
            finally:
                _end_what_is_left(loop)
    finally:
        asyncio.set_event_loop(None)
        restore_clock()
        sys.setswitchinterval(interval)
        loop.network.close()
        loop.close()


async def _awaited(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


@overload
def seam(test: Test, /) -> Callable[..., None]: ...
@overload
def seam(*, seed: int = 1) -> Callable[[Test], Callable[..., None]]: ...
def seam(test: Test | None = None, /, *, seed: int = 1) -> Any:
    """Make a test of an `async def`: it runs in virtual time. Fixtures are given as to any other test."""
    if test is None:
        return functools.partial(_on_the_loop, seed=seed)
    return _on_the_loop(test, seed=seed)


def _on_the_loop(test: Test, *, seed: int) -> Callable[..., None]:
    @functools.wraps(test)
    def runs(*args: Any, **fixtures: Any) -> None:
        run(lambda: test(*args, **fixtures), seed)

    return runs


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Keys, ids and jitter come from one generator. Its numbers are no secret, which a test may know."""
    numbers = random.Random(seed)
    before = random.getstate()

    def token_bytes(count: int | None = None) -> bytes:
        return numbers.randbytes(32 if count is None else count)

    def token_hex(count: int | None = None) -> str:
        return token_bytes(count).hex()

    def token_urlsafe(count: int | None = None) -> str:
        return base64.urlsafe_b64encode(token_bytes(count)).rstrip(b"=").decode("ascii")

    with ExitStack() as stack:
        for made in (token_bytes, token_hex, token_urlsafe):
            stack.enter_context(patch.object(secrets, made.__name__, made))
        random.seed(seed)
        stack.callback(random.setstate, before)
        yield


def _end_what_is_left(loop: VirtualLoop) -> None:
    """Cancel what the test left running. A task that will not end must not hang the whole run."""
    left = [task for task in asyncio.all_tasks(loop) if not loop.is_of_the_dead(task)]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=60))
    loop.run_until_complete(loop.shutdown_asyncgens())
