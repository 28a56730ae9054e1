"""Errors that the gateway itself returns, by the side that has to act on them, and the `executed` value of each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round
from taskgate.mcp.failures import Executed as Executed


class Basis(StrEnum):
    """What the `executed` of an error is based on."""

    REFUSAL = "refusal"
    """The request was refused before any work was done for it."""
    EVIDENCE = "evidence"
    """Evidence about the call that this request made."""
    RECORD = "record"
    """The record of the task that this request refers to."""


class TaskgateError(Exception):
    """An error that the gateway returns to a caller.

    `executed`: omit it if the request is refused before any work was done for it; it is then `no`.
    """

    def __init__(
        self,
        error_type: str,
        message: str,
        *,
        executed: Executed | None = None,
        basis: Basis | None = None,
        gate: str | None = None,
        data: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message
        self.executed = executed if executed is not None else Executed.NO
        self.basis = basis or (Basis.REFUSAL if executed is None else Basis.EVIDENCE)
        self.gate = gate
        self.data: dict[str, Any] = dict(data or {})
        self.retry_after_s = retry_after_s

    def is_proven_by_record(self, executed: Executed, task_id: str) -> None:
        """Set `executed` to what the record of this task proves."""
        self.executed, self.basis = executed, Basis.RECORD
        self.data.setdefault("task_id", task_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.error_type!r}, {self.message!r}, executed={self.executed.value!r})"


class CallerError(TaskgateError):
    """The request is malformed, unknown, forbidden or exceeds a limit of the caller."""


class UpstreamError(TaskgateError):
    """A server could not be reached, violated the protocol, or the connection to it was lost."""


class GatewayFault(TaskgateError):
    """The gateway failed: the store is unavailable, an internal limit is reached, or there is a bug."""


def stated_executed(error: TaskgateError, method: str, params: Mapping[str, Any]) -> Executed | None:
    """Return the `executed` that the error of this request states; None if it states none, which a reader must treat as
    `maybe`.

    For a request about a task it concerns the call of the task, so only the record of the task proves it. A later round
    belongs to a call that had already started: that this round was not sent proves nothing about earlier rounds.
    """
    if is_about_tasks(method, params):
        return error.executed if error.basis is Basis.RECORD else None
    if error.executed is Executed.NO and error.basis is not Basis.RECORD and is_later_round(params):
        return Executed.MAYBE
    return error.executed
