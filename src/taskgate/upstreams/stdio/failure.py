"""What can go wrong with a child process before a line has reached it. None of it can have executed anything."""

from __future__ import annotations

from enum import StrEnum

from taskgate.core.errors import Executed


class ChildProblem(StrEnum):
    """Why a child could not be started or a line not be sent."""

    NOT_FOUND = "not_found"
    NOT_STARTED = "not_started"
    GONE = "gone"
    BUFFER_FULL = "buffer_full"


class ChildFailure(Exception):
    """Raised by `Child.start` and `Child.send`; `executed` is always NO."""

    executed = Executed.NO

    def __init__(self, problem: ChildProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message
