"""The errors that Taskgate itself makes, sorted by whose fault they are.

An `error_type` is a stable name; the number it bears on the wire depends on the generation and is decided in
`core.generations.error_codes`. Every error says whether the call may have been executed, because that is the first thing a
careful caller wants to know. Messages are written for the caller: they never hold rule text, policy text, upstream addresses or
secrets. Errors that an *upstream* answers with are not here: those are relayed as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.mcp.failures import Executed

__all__ = ["CallerError", "Executed", "GatewayFault", "TaskgateError", "UpstreamError"]


class TaskgateError(Exception):
    """Something that is answered to a caller as an error of our own."""

    def __init__(
        self,
        error_type: str,
        message: str,
        *,
        executed: Executed = Executed.NO,
        gate: str | None = None,
        data: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message
        self.executed = executed
        self.gate = gate
        self.data: dict[str, Any] = dict(data or {})
        self.retry_after_s = retry_after_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.error_type!r}, {self.message!r}, executed={self.executed.value!r})"


class CallerError(TaskgateError):
    """The caller asked for something malformed, unknown, forbidden or too much."""


class UpstreamError(TaskgateError):
    """An upstream could not be reached, broke its protocol, or lost contact."""


class GatewayFault(TaskgateError):
    """We could not do our part: the store is down, a limit of ours is reached, or there is a bug."""
