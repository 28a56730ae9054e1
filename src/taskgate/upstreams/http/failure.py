"""What went wrong with an HTTP exchange, where, and whether the request may have been executed all the same.

`executed` is the reason why this client is our own: it is NO only when it is certain that the peer cannot have had the
whole request. This module decides nothing about sending again; the callers of the client do.
"""

from __future__ import annotations

from enum import StrEnum

from taskgate.core.errors import Executed


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
    """An exchange without a usable reply. `status` is known once a head has come; `partial` begins its body."""

    def __init__(
        self, stage: Stage, message: str, executed: Executed, *, status: int | None = None, partial: bytes = b""
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message
        self.executed = executed
        self.status = status
        self.partial = partial

    def __repr__(self) -> str:
        return (
            f"HttpFailure({self.stage.value}, {self.message!r}, executed={self.executed.value}, status={self.status})"
        )
