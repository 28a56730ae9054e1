"""Turns of scripts: round robin over tenants, then over their callers, within limits of CPU time.

A script returns to the end of the queue after each step. So the first step of a caller waits for at most one step of others,
however many scripts they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from taskgate import clock
from taskgate.core.fair_queue import FairQueue, QueuePlace
from taskgate.core.identity.identity import tenant_of
from taskgate.core.tasks.task import Task
from taskgate.gateway.requests.budgets import Budgets

_CHECKED_S: Final = 5.0
"""How often a waiting step checks whether a reload has changed its limit."""


class FairTurns:
    """A few places, each for one caller at a time. `caller` is the name by which it is limited: without a token, its address."""

    def __init__(self, places: int) -> None:
        self._queue = FairQueue(places)

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        turn = asyncio.get_running_loop().create_future()
        if self._queue.enter(caller, turn, limited=False) is QueuePlace.WAITS:
            try:
                await turn
            except BaseException:
                if not self._queue.abandon(caller, turn):
                    self._grant(self._queue.leave(caller))
                raise
        try:
            yield
        finally:
            self._grant(self._queue.leave(caller))

    def _grant(self, turns: Iterable[object]) -> None:
        for turn in turns:
            assert isinstance(turn, asyncio.Future)
            if not turn.done():
                turn.set_result(None)


class StepTurns:
    """The turns of steps, within the limits of CPU time. Beyond a limit steps wait; nothing fails."""

    def __init__(self, workers: int, budgets: Budgets) -> None:
        self._turns = FairTurns(workers)
        self._budgets = budgets

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a worker that the caller may use."""
        while True:
            # Checked again with a place, because other steps of the caller have had theirs meanwhile.
            while wait_s := self._wait_s(caller):
                await clock.sleep(min(wait_s, _CHECKED_S))
            async with self._turns.turn(caller):
                if not self._wait_s(caller):
                    yield
                    return

    def charge(self, caller: str, cpu_s: float) -> None:
        """Count the CPU time of a step."""
        self._budgets.script_cpu_of_callers.charge(caller, cpu_s)
        if tenant := tenant_of(caller):
            self._budgets.script_cpu_of_tenants.charge(tenant, cpu_s)

    def _wait_s(self, caller: str) -> float:
        tenant = tenant_of(caller)
        of_tenant = self._budgets.script_cpu_of_tenants.wait_s(tenant) if tenant else 0.0
        return max(of_tenant, self._budgets.script_cpu_of_callers.wait_s(caller))


def limited_caller(script: Task) -> str:
    """By which name a script's caller is limited: callers without a token of one address are one."""
    return script.limited_as or script.caller
