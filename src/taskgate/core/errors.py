"""Errors that the gateway itself returns, by who has to act on them, and the `executed` that each error states."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round
from taskgate.mcp.failures import REFUSALS as REFUSALS
from taskgate.mcp.failures import Executed as Executed


class Basis(StrEnum):
    """What an error's `executed` rests on."""

    REFUSAL = "refusal"
    """The request was refused before anything was done for it."""
    EVIDENCE = "evidence"
    """What is known about the call that this request made."""
    RECORD = "record"
    """The record of the task that this request is about."""


class TaskgateError(Exception):
    """Something that is answered to a caller as an error of our own.

    `executed`: leave it out where the request is refused before anything was done for it, which means `no`.
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
        """The error is about this task, and its record proves so much."""
        self.executed, self.basis = executed, Basis.RECORD
        self.data.setdefault("task_id", task_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.error_type!r}, {self.message!r}, executed={self.executed.value!r})"


class CallerError(TaskgateError):
    """The caller asked for something malformed, unknown, forbidden or too much."""


class UpstreamError(TaskgateError):
    """An upstream could not be reached, broke its protocol, or lost contact."""


class GatewayFault(TaskgateError):
    """We could not do our part: the store is down, a limit of ours is reached, or there is a bug."""


def stated_executed(error: TaskgateError, method: str, params: Mapping[str, Any]) -> Executed | None:
    """The `executed` that the error of this request states; None if it states none, which a reader takes as `maybe`.

    A request about a task is about the task's call: only its record can tell. A later round is about a call that had begun:
    that this round was not sent proves nothing about the earlier ones.
    """
    if is_about_tasks(method, params):
        return error.executed if error.basis is Basis.RECORD else None
    if error.executed is Executed.NO and error.basis is not Basis.RECORD and is_later_round(params):
        return Executed.MAYBE
    return error.executed
