"""JSON-RPC error codes and HTTP statuses of the gateway's own errors, per generation.

The stable name of an error is its `error_type`; the code follows the negotiated revision. 2026-07-28 reserves -32020 to
-32099, so there our own errors have general codes, and a former code is reported as `legacy_code` in the data.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.generations.generation import Generation


class Code(msgspec.Struct, frozen=True):
    """The codes of one error type."""

    stateful: int
    stateless: int
    legacy: int | None = None
    status: int = 200
    """The HTTP status if the whole response is this error (stateless only; `overloaded` in both)."""


CODES: Final[dict[str, Code]] = {
    "parse_error": Code(-32700, -32700, status=400),
    "invalid_request": Code(-32600, -32600, status=400),
    "method_not_found": Code(-32601, -32601, status=404),
    "invalid_params": Code(-32602, -32602),
    "invalid_envelope": Code(-32602, -32602, status=400),
    "invalid_cursor": Code(-32602, -32602),
    "unknown_resource": Code(-32002, -32602),
    "unknown_skill": Code(-32602, -32602),
    "content_mismatch": Code(-32603, -32603),
    "unknown_prompt": Code(-32602, -32602),
    "header_mismatch": Code(-32600, -32020, status=400),
    "missing_capability": Code(-32600, -32021, status=400),
    "unsupported_version": Code(-32602, -32022, status=400),
    "not_initialized": Code(-32600, -32600, status=400),
    "task_required": Code(-32601, -32601, -32009),
    "task_forbidden": Code(-32601, -32601, -32010),
    "unknown_tool": Code(-32602, -32602, -32015),
    "scope_refused": Code(-32602, -32602),
    "not_allowed": Code(-32602, -32602),
    "bad_scope_request": Code(-32602, -32602, status=400),
    "bad_pattern": Code(-32602, -32602, status=400),
    "policy_denied": Code(-32003, -32602, -32003),
    "approval_rejected": Code(-32007, -32602, -32007),
    "approval_expired": Code(-32008, -32602, -32008),
    "approval_pending": Code(-32007, -32602, -32007),
    "policy_drift": Code(-32011, -32602, -32011),
    "request_drift": Code(-32012, -32602, -32012),
    "unknown_task": Code(-32602, -32602, -32081),
    "result_expired": Code(-32602, -32602, -32005),
    "result_not_ready": Code(-32602, -32602, -32089),
    "task_finished": Code(-32602, -32602, -32090),
    "script_open": Code(-32602, -32602),
    "script_resumed": Code(-32602, -32602),
    "script_not_resumable": Code(-32603, -32603),
    "unknown_server": Code(-32602, -32602),
    "idempotency_conflict": Code(-32602, -32602),
    "request_too_large": Code(-32600, -32600, status=413),
    "overloaded": Code(-32013, -32603, -32013, status=503),
    "rate_limited": Code(-32013, -32603, -32009, status=429),
    "gateway_unreachable": Code(-32000, -32603, -32000),
    "upstream_unreachable": Code(-32000, -32603, -32000),
    "upstream_timeout": Code(-32001, -32603, -32001),
    "upstream_protocol": Code(-32000, -32603, -32000),
    "result_too_large": Code(-32000, -32603, -32000),
    "outcome_unknown": Code(-32000, -32603, -32000),
    "input_refused": Code(-32602, -32602),
    "invalid_arguments": Code(-32602, -32602),
    "invalid_output": Code(-32603, -32603),
    "unusable_schema": Code(-32603, -32603),
    "unsafe_url": Code(-32602, -32602),
    "unknown_question": Code(-32602, -32602),
    "unknown_request": Code(-32602, -32602),
    "unknown_reference": Code(-32602, -32602, -32021),
    "invalid_uri": Code(-32602, -32602, -32022),
    "task_exists": Code(-32602, -32602, -32082),
    "unknown_elicitation": Code(-32602, -32602),
    "invalid_sampling_request": Code(-32602, -32602),
    "invalid_model_preferences": Code(-32602, -32602, -32048),
    "model_not_available": Code(-32603, -32603, -32049),
    "sampling_failed": Code(-32603, -32603, -32046),
    "sampling_timeout": Code(-32603, -32603, -32047),
    "sampling_rate_limited": Code(-32603, -32603, -32050),
    "sampling_budget_exceeded": Code(-32603, -32603, -32050),
    "sampling_refused": Code(-1, -1),
    "store_unavailable": Code(-32603, -32603, status=503),
    "shutting_down": Code(-32603, -32603, status=503),
    "credential_expired": Code(-32000, -32603),
    "credential_revoked": Code(-32000, -32603),
    "access_changed": Code(-32000, -32603),
    "internal": Code(-32603, -32603),
}
_UNKNOWN: Final = Code(-32603, -32603)
SEED_TASK_TYPES: Final = ("task_required", "task_forbidden")


def code_of(error_type: str) -> Code:
    return CODES.get(error_type, _UNKNOWN)


def error_data(error: TaskgateError, correlation_id: str, executed: Executed | None) -> dict[str, Any]:
    """Build the `data` member of an error. Without `executed`, nothing is stated about the call."""
    data: dict[str, Any] = {"error_type": error.error_type}
    if error.gate is not None:
        data["gate"] = error.gate
    data["correlation_id"] = correlation_id
    if executed is not None:
        data["executed"] = executed.value
    legacy = code_of(error.error_type).legacy
    if legacy is not None:
        data["legacy_code"] = legacy
    data.update(error.data)
    return data


def error_object(
    error: TaskgateError,
    generation: Generation,
    correlation_id: str,
    executed: Executed | None,
    *,
    seed_task_codes: bool = False,
    legacy_numbers: bool = False,
) -> bytes:
    """Build the JSON-RPC error object. Former codes, if requested, are for stateful callers only."""
    data = error_data(error, correlation_id, executed)
    code = code_of(error.error_type)
    number = code.stateful if generation is Generation.STATEFUL else code.stateless
    if generation is Generation.STATEFUL and (
        legacy_numbers or (seed_task_codes and error.error_type in SEED_TASK_TYPES)
    ):
        number = data.get("legacy_code", number)
    return wire.encode({"code": number, "message": error.message, "data": data})
