"""Suggest values for `completion/complete` that the same caller has used before.

A call leaves a note, which costs almost nothing; notes are read when suggestions are requested, or during housekeeping.
Everything is bounded, kept per caller and lost at a restart.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core.completion.memory import CompletionPlace, Usage, UsageMemory
from taskgate.core.completion.ranking import CandidateIndex
from taskgate.gateway.events import DataErased, EventHub, SessionEnded
from taskgate.gateway.plan import Live, Plan

MAX_NOTES: Final = 1_000
MAX_NOTED_BYTES: Final = 4_096
MAX_INDEXES: Final = 500
MAX_ANSWERS: Final = 1_000
REUSED_FOR_S: Final = 2.0
_Note = tuple[str, str, str, Mapping[str, Any], float]


class Completions:
    def __init__(self, plan: Live[Plan], events: EventHub) -> None:
        self._plan = plan
        self._memory = UsageMemory()
        self._notes: deque[_Note] = deque(maxlen=MAX_NOTES)
        self._indexes: OrderedDict[Hashable, tuple[object, CandidateIndex]] = OrderedDict()
        self._answers: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()
        events.subscribe(SessionEnded, lambda event: self.forget(event.session.key))
        events.subscribe(DataErased, lambda event: self.forget(event.principal))

    def note(self, caller: str, server: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Note used arguments; they are processed later. `caller` is a `memory_key`."""
        if caller:
            self._notes.append((caller, server, name, arguments, clock.monotonic()))

    def digest(self) -> None:
        """Process the notes."""
        learn = self._plan.value.features.learn
        if learn is not self._memory.enabled:
            self._memory.switch(learn)
        while self._notes:
            note = self._notes.popleft()
            self._memory.learn(*note)

    def used(self, caller: str, place: CompletionPlace) -> Mapping[str, Usage]:
        self.digest()
        return self._memory.used(caller, place)

    def forget(self, caller: str) -> None:
        """Delete a caller's values: its session has ended, or its data are erased."""
        self._notes = deque((note for note in self._notes if note[0] != caller), MAX_NOTES)
        self._memory.forget(caller)

    def index(self, key: Hashable, source: object, values: Callable[[], Iterable[str]]) -> CandidateIndex:
        """Return the index of one argument, rebuilt when its sources have changed."""
        found = self._indexes.get(key)
        if found is not None and found[0] is source:
            self._indexes.move_to_end(key)
            return found[1]
        index = CandidateIndex.build(values())
        self._indexes[key] = (source, index)
        self._indexes.move_to_end(key)
        if len(self._indexes) > MAX_INDEXES:
            self._indexes.popitem(last=False)
        return index

    def recent(self, key: Hashable) -> bytes | None:
        """Return a recent answer to the same request, if there is one."""
        found = self._answers.get(key)
        return found[1] if found is not None and clock.monotonic() - found[0] < REUSED_FOR_S else None

    def keep(self, key: Hashable, answer: bytes) -> None:
        self._answers[key] = (clock.monotonic(), answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
