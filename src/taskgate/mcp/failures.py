"""Failures of an HTTP exchange or of a child process, and what they imply about execution."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Executed(StrEnum):
    """Whether a failed call was executed, as far as that is known."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


REFUSALS: Final = frozenset({401, 403, 404, 405, 406, 413, 415, 421, 429})
"""HTTP statuses that a server returns instead of handling the request, so the call was not executed."""


class Stage(StrEnum):
    """The step at which the exchange failed."""

    RESOLVE = "resolve"
    CONNECT = "connect"
    TLS = "tls"
    POOL_FULL = "pool_full"
    WRITE = "write"
    AWAIT_HEAD = "await_head"
    READ_BODY = "read_body"
    DEADLINE = "deadline"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"


class HttpFailure(Exception):
    """An exchange without a usable reply. `status` is set once a response head was received; `partial` is the start of its body.

    `message` may contain addresses and is for operators; `reason` is a short fixed text without addresses, or empty.
    """

    def __init__(
        self,
        stage: Stage,
        message: str,
        executed: Executed,
        *,
        status: int | None = None,
        partial: bytes = b"",
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message
        self.executed = executed
        self.status = status
        self.partial = partial
        self.reason = reason

    def __repr__(self) -> str:
        return (
            f"HttpFailure({self.stage.value}, {self.message!r}, executed={self.executed.value}, status={self.status})"
        )


class ChildProblem(StrEnum):
    """Why a child process could not be started or a line could not be sent."""

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
