"""How an exchange over HTTP or with a child process fails."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Executed(StrEnum):
    """What is known about the effect of a call that did not end well."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


REFUSALS: Final = frozenset({401, 403, 404, 405, 406, 413, 415, 421, 429})
"""HTTP statuses that a server returns instead of handling the request: they prove that the call was not executed."""


class Stage(StrEnum):
    """How far the exchange had come."""

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
    """An exchange without a usable reply. `status` is known once a head has come; `partial` begins its body.

    `message` is for who may know addresses, `reason` for everybody else: a few fixed words, or none.
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
