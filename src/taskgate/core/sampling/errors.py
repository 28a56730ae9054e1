"""Errors of sampling on behalf of a server. The names are stable; `legacy_code` is a former code."""

from __future__ import annotations

from enum import StrEnum

from taskgate.core.errors import Executed, TaskgateError


class SamplingProblem(StrEnum):
    """The kinds of errors."""

    INVALID_REQUEST = "invalid_sampling_request"
    INVALID_PREFERENCES = "invalid_model_preferences"
    MODEL_NOT_AVAILABLE = "model_not_available"
    FAILED = "sampling_failed"
    TIMEOUT = "sampling_timeout"
    RATE_LIMITED = "sampling_rate_limited"
    OVER_BUDGET = "sampling_budget_exceeded"


_LEGACY_CODES = {
    SamplingProblem.FAILED: -32046,
    SamplingProblem.TIMEOUT: -32047,
    SamplingProblem.INVALID_PREFERENCES: -32048,
    SamplingProblem.MODEL_NOT_AVAILABLE: -32049,
    SamplingProblem.RATE_LIMITED: -32050,
    SamplingProblem.OVER_BUDGET: -32050,
}


class SamplingError(TaskgateError):
    """Returned to the server. Never has a key, an address or a message of the provider."""

    def __init__(
        self,
        problem: SamplingProblem,
        message: str,
        *,
        retry_after_s: float | None = None,
        executed: Executed = Executed.NO,
    ) -> None:
        legacy = _LEGACY_CODES.get(problem)
        data = {} if legacy is None else {"legacy_code": legacy}
        super().__init__(
            problem.value, message, executed=executed, gate="sampling", data=data, retry_after_s=retry_after_s
        )
        self.problem = problem
