"""Read the sources of scripts: each is parsed once, in a thread and one after the other, because the parser of Python blocks every
other thread, and threads that read sources at the same time delay the event loop by a turn of each.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from taskgate.core.scripts.check_source import SourceFault, check_source, parse
from taskgate.core.scripts.code_digest import code_digest
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.passed_on import passed_on
from taskgate.core.scripts.plan import ScriptPlan, plan_of
from taskgate.gateway.scripts.fair_turns import FairTurns

_REMEMBERED: Final = 256


class ReadSource(msgspec.Struct, frozen=True):
    """What is known of a script before it runs."""

    faults: tuple[SourceFault, ...]
    plan: ScriptPlan
    passed_on: frozenset[int]


class ScriptSources:
    def __init__(self) -> None:
        self._turns = FairTurns(1)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="script-source")
        self._passed_on: OrderedDict[str, frozenset[int]] = OrderedDict()
        """By the digest of the source."""

    async def read(self, code: str, names: Sequence[PythonName], caller: str) -> ReadSource:
        """Parse the source and find its faults, its tools, and the calls whose results it only passes on.

        `caller` is the name by which the caller is limited: sources are read in turn, one of each caller.
        """
        async with self._turns.turn(caller):
            found = await asyncio.get_running_loop().run_in_executor(self._thread, _read, code, names)
        if not found.faults:
            self._passed_on[code_digest(code)] = found.passed_on
            if len(self._passed_on) > _REMEMBERED:
                self._passed_on.popitem(last=False)
        return found

    async def passed_on(self, code: str, caller: str) -> frozenset[int]:
        """Where calls begin whose results are only passed on. A source is read again after a restart of the gateway."""
        known = self._passed_on.get(code_digest(code))
        return known if known is not None else (await self.read(code, (), caller)).passed_on

    def close(self) -> None:
        """End the thread when it has read what it reads now."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _read(code: str, names: Sequence[PythonName]) -> ReadSource:
    tree = parse(code)
    return ReadSource(check_source(tree, names), plan_of(tree, names), passed_on(code, tree))
