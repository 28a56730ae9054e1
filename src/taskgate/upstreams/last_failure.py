"""Why a server is unavailable, as shown to operators and to callers."""

from __future__ import annotations

from typing import Final

from taskgate.core.errors import TaskgateError
from taskgate.ports.call_failure import CallFailed, for_operators

MAX_REASON_CHARS: Final = 300


class LastFailure:
    """The reason for the last failure: complete for operators, and as callers received it."""

    def __init__(self) -> None:
        self.shown: str | None = None
        self._why = ""

    def set(self, problem: TaskgateError) -> None:
        self.shown = for_operators(problem)
        self._why = problem.why[:MAX_REASON_CHARS] if isinstance(problem, CallFailed) else ""

    def over(self) -> None:
        self.shown, self._why = None, ""

    def until(self, wait_s: float) -> str:
        """Return the error text for calls before the next attempt."""
        because = f": it {self._why}" if self._why else ""
        return f"is unavailable{because}; the next attempt is in {wait_s:.1f} s"
