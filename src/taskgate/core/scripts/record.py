"""The durable record of a script between two steps: its counters, what it has printed, and the calls that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

MAX_REFUSED: Final = 100
"""Refused calls that are kept. Every one also has its row in the audit log."""


class OpenCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of the script without a delivered outcome. Exactly one of `child`, `due_ms`, `question` and `settled` is set."""

    number: int
    """The interpreter's id of the call, unique within the script."""
    function: str
    """The name that the script called: a tool, or one of the functions of the gateway."""
    line: int = 0
    child: str = ""
    """The task of the call. If no such task exists, the call was refused before anything was sent."""
    due_ms: int | None = None
    """When a `sleep` ends, by the store's clock."""
    question: str = ""
    """The key of the question that an `ask` waits for."""
    arguments: bytes = b""
    """What an `ask` shows: a JSON object with message and schema."""
    offset: int = -1
    """Where the call begins in the source, in bytes; -1 if unknown."""
    settled: bytes | None = None
    """The outcome, if it was known when the step was stored: a denial, a result of an earlier script, a recorded value."""


class RefusedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that was refused before it became a task, for example by a rule. Nothing was sent."""

    number: int
    tool: str
    line: int
    error_type: str


class ReceivedOutcomes(msgspec.Struct, frozen=True):
    """The calls whose outcomes a script received with a step."""

    step: int
    numbers: tuple[int, ...]


class ScriptRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counters are kept here and not in the snapshot: loading a snapshot resets those of the interpreter."""

    step: int = 0
    interpreter: str = ""
    """The version of the interpreter that wrote the snapshot."""
    calls: int = 0
    """All calls so far, including those of the functions of the gateway."""
    spent_ms: int = 0
    """Execution time so far, without the time of waiting for people and of `sleep`."""
    pending: tuple[OpenCall, ...] = ()
    printed: str = ""
    dropped: int = 0
    """Characters that were printed beyond the limit and are not kept."""
    progress: float | None = None
    progress_total: float | None = None
    reused: tuple[str, ...] = ()
    """With `resume_of`: the calls of the earlier script whose results were handed over. Each is used once."""

    refused: tuple[RefusedCall, ...] = ()
    """The first refused calls, up to `MAX_REFUSED`."""
    more_refused: int = 0
    """The number of refused calls beyond that."""

    def with_refused(self, calls: Sequence[RefusedCall]) -> ScriptRecord:
        """Return the record with these calls added, up to `MAX_REFUSED`; the rest is counted."""
        if not calls:
            return self
        every = (*self.refused, *calls)
        more = self.more_refused + max(0, len(every) - MAX_REFUSED)
        return msgspec.structs.replace(self, refused=every[:MAX_REFUSED], more_refused=more)

    @property
    def pending_children(self) -> tuple[str, ...]:
        return tuple(call.child for call in self.pending if call.child)
