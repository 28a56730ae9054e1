"""Errors of sampling on behalf of a server. The names are stable; `legacy_code` is a former code."""

from __future__ import annotations

from enum import StrEnum

from taskgate.core.errors import Executed, TaskgateError

# What can go wrong when a model is asked on a server's behalf. The names are stable; `legacy_code` is an older
# numbering.
#
# A sampling request as values: who said what to whom, and how the answer should be made.
#
# `read_request` makes these out of what a server sent; providers translate them into their vendor's form. No vendor's
# form, and no wire form, is known here.
#
# Reads what a server sent as `sampling/createMessage`.
#
# Lenient where older servers differ (a bare string as content, a `system` role, a boolean `includeContext`, which is
# not used at all); strict where a provider would fail later with words of its own: pairing of tool uses and results,
# roles, ranges.


class SamplingProblem(StrEnum):
    """The kinds of trouble."""

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
    """Answered to the server that asked. Never holds a key, an address or a provider's own words."""

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
