"""Slots of one server, shared fairly among tenants and among the callers of each tenant."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from enum import StrEnum
from typing import Final

from taskgate.core.errors import CallerError
from taskgate.core.identity.identity import tenant_of

_STALE_ENTRIES: Final = 64
"""A ranking is compacted when it has this many entries more than twice the number of its names."""


class QueuePlace(StrEnum):
    """The result of requesting a slot."""

    RUNS = "runs"
    WAITS = "waits"


Rank = tuple[int, ...]


class _Ranking:
    """Names ordered by rank, in logarithmic time. A replaced entry stays in the heap until it is reached or compacted."""

    __slots__ = ("_heap", "_ranks")

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, str]] = []
        self._ranks: dict[str, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def put(self, name: str, rank: Rank) -> None:
        if self._ranks.get(name) == rank:
            return
        self._ranks[name] = rank
        heapq.heappush(self._heap, (rank, name))
        if len(self._heap) > 2 * len(self._ranks) + _STALE_ENTRIES:
            self._heap = [(rank, name) for name, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        del self._ranks[name]

    def lowest(self) -> tuple[Rank, str]:
        """Return the name with the lowest rank. The ranking must not be empty."""
        while self._ranks.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0]


def _tenant(caller: str) -> str:
    return tenant_of(caller) or caller


def _add(counts: Counter[str], name: str, change: int) -> None:
    counts[name] += change
    if not counts[name]:
        del counts[name]


class FairQueue:
    """Slots of one server. A free slot goes to the tenant with the fewest running calls, and within it to the waiting
    caller with the fewest. A caller without a tenant counts as a tenant of its own.

    Among equals the one whose last call ended longest ago is first, so a caller cannot starve another by requesting more
    often. Each step takes logarithmic time, also with ten thousand waiting calls. The object has no locks and no clock:
    one event loop owns it.
    """

    def __init__(
        self,
        slots: int,
        max_waiting: int = 1000,
        max_waiting_per_caller: int = 100,
        max_waiting_per_tenant: int = 1000,
    ) -> None:
        self.slots = slots
        self.max_waiting = max_waiting
        self.max_waiting_per_caller = max_waiting_per_caller
        self.max_waiting_per_tenant = max_waiting_per_tenant
        self.running = 0
        """Number of calls that hold a slot."""
        self.waiting = 0
        """Number of calls that wait for a slot."""
        self._running: dict[str, int] = {}
        self._running_of_tenant: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Hashable, None]] = {}
        """The tickets of each waiting caller, oldest first."""
        self._waiting_of_tenant: Counter[str] = Counter()
        self._since: dict[str, int] = {}
        """For each waiting caller: when it began to wait, was last served, or its last call ended, counted in `_steps`."""
        self._since_of_tenant: dict[str, int] = {}
        """The same for each tenant with waiting callers."""
        self._steps: Iterator[int] = itertools.count()
        self._callers: dict[str, _Ranking] = {}
        """The waiting callers of each tenant."""
        self._tenants = _Ranking()
        """The tenants with waiting callers."""

    def enter(self, caller: str, ticket: Hashable, *, limited: bool = True) -> QueuePlace:
        """Request a slot: run now, or wait until `leave` returns the ticket. Raises `overloaded` if no more calls may
        wait, unless the call was accepted before (`limited=False`).
        """
        if self.running < self.slots and not self._waiting:
            self._run(caller)
            return QueuePlace.RUNS
        if limited and self.is_full_for(caller):
            raise CallerError(
                "overloaded", "Too many calls are waiting for this server. Try again later.", gate="budget"
            )
        line = self._waiting.get(caller)
        if line is None:
            line = self._waiting[caller] = OrderedDict()
            self._since[caller] = next(self._steps)
            self._since_of_tenant.setdefault(_tenant(caller), self._since[caller])
        line[ticket] = None
        self._count_waiting(caller, 1)
        self._rank(caller)
        return QueuePlace.WAITS

    def is_full_for(self, caller: str) -> bool:
        """Whether a call of this caller could neither run nor wait."""
        if self.running < self.slots and not self._waiting:
            return False
        line = self._waiting.get(caller, ())
        full = self.waiting >= self.max_waiting or len(line) >= self.max_waiting_per_caller
        return full or self._waiting_of_tenant[_tenant(caller)] >= self.max_waiting_per_tenant

    def leave(self, caller: str) -> list[Hashable]:
        """A call of this caller has ended. Return the tickets that run now."""
        held = self._running.pop(caller, 0)
        if held:
            self.running -= 1
            _add(self._running_of_tenant, _tenant(caller), -1)
        if held > 1:
            self._running[caller] = held - 1
        self._served(caller)
        self._rank(caller)
        return self._admit()

    def abandon(self, caller: str, ticket: Hashable) -> bool:
        """Remove a waiting call. Return False if it no longer waits: then it runs and must `leave`."""
        line = self._waiting.get(caller)
        if line is None or ticket not in line:
            return False
        del line[ticket]
        self._count_waiting(caller, -1)
        self._rank(caller)
        return True

    def run_at_once(self, caller: str) -> None:
        """Take a slot for a call that already runs, even beyond the limit."""
        self._run(caller)

    def limit_waiting(self, in_all: int, per_caller: int, per_tenant: int) -> None:
        self.max_waiting, self.max_waiting_per_caller, self.max_waiting_per_tenant = in_all, per_caller, per_tenant

    def resize(self, slots: int) -> list[Hashable]:
        """Change the number of slots. Return the tickets that run now; running calls are not affected."""
        self.slots = slots
        return self._admit()

    def _run(self, caller: str) -> None:
        self._running[caller] = self._running.get(caller, 0) + 1
        _add(self._running_of_tenant, _tenant(caller), 1)
        self.running += 1
        self._rank(caller)

    def _count_waiting(self, caller: str, change: int) -> None:
        self.waiting += change
        _add(self._waiting_of_tenant, _tenant(caller), change)

    def _admit(self) -> list[Hashable]:
        admitted: list[Hashable] = []
        while self._waiting and self.running < self.slots:
            _, tenant = self._tenants.lowest()
            _, caller = self._callers[tenant].lowest()
            ticket, _ = self._waiting[caller].popitem(last=False)
            admitted.append(ticket)
            self._served(caller)
            self._count_waiting(caller, -1)
            self._run(caller)
        return admitted

    def _served(self, caller: str) -> None:
        """Put the caller and its tenant behind those that wait now."""
        now, tenant = next(self._steps), _tenant(caller)
        if caller in self._since:
            self._since[caller] = now
        if tenant in self._since_of_tenant:
            self._since_of_tenant[tenant] = now

    def _rank(self, caller: str) -> None:
        """Update the rank of this caller and of its tenant after a change of either."""
        if not self._waiting:
            return
        tenant = _tenant(caller)
        line, callers = self._waiting.get(caller), self._callers.get(tenant)
        if callers is None:
            if line is None:
                return
            callers = self._callers[tenant] = _Ranking()
        if line:
            callers.put(caller, (self._running.get(caller, 0), self._since[caller]))
        elif line is not None:
            del self._waiting[caller], self._since[caller]
            callers.drop(caller)
        if callers:
            (fewest, _), _ = callers.lowest()
            self._tenants.put(tenant, (self._running_of_tenant[tenant], fewest, self._since_of_tenant[tenant]))
        else:
            del self._callers[tenant], self._since_of_tenant[tenant]
            self._tenants.drop(tenant)
