"""Waiting in virtual time: for facts, and with a deadline that only ends a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from tests.virtual_time.loop import Deadlock, VirtualLoop

T = TypeVar("T")
TIMEOUT_S = 600.0


def the_loop() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


async def within(awaited: Awaitable[T], what: str, seconds: float = TIMEOUT_S) -> T:
    """The value, or a failure that names what did not happen and what every task waits for."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await awaited
    except TimeoutError:
        if not limit.expired():
            raise
        raise Deadlock(f"{what}: not within {seconds:.0f} virtual seconds.\n{the_loop().stacks()}") from None


async def until(fact: Callable[[], object], what: str = "the fact", seconds: float = TIMEOUT_S) -> None:
    """Wait until something is so. Looks again after everything that can run has run, then every 10 virtual ms."""
    loop = the_loop()
    end = loop.time() + seconds
    while not fact():
        if loop.time() >= end:
            raise Deadlock(f"{what}: not within {seconds:.0f} virtual seconds.\n{loop.stacks()}")
        await asyncio.sleep(0.01)


async def settle() -> None:
    """Let everything run that can run now, the store's commits included; time moves by a microsecond only."""
    await asyncio.sleep(1e-6)
