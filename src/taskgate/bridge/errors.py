"""Errors that the bridge itself returns to the client.

`executed` describes the call: that of the request, or an earlier one that the request refers to. The bridge knows
nothing about earlier calls, so an error about a task has no `executed`, and one of a later round never has `no`.
"""

from __future__ import annotations

import os
from typing import Any

from taskgate.bridge.pending import MAX_OPEN, REPEATABLE, Sent, encode, parse
from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round

_CODES = {"overloaded": -32013}


def gateway_crashed(request: Sent) -> bytes:
    """Return the error for a request during which the gateway ended."""
    if is_about_tasks(request.method, _params(request)):
        message = "The local gateway ended during this request. Tasks are durable: send it again."
        return failure(request, "gateway_unreachable", message, None)
    if request.method in REPEATABLE:
        message = "The local gateway ended during this request. No tool was executed. Send it again."
        return failure(request, "gateway_unreachable", message, "no")
    message = "The local gateway ended during this call. It may or may not have taken effect."
    return failure(request, "outcome_unknown", message, "maybe")


def gateway_unreachable(request: Sent, why: str, *, was_sent: bool) -> bytes:
    """Return the error for a request without a gateway. `was_sent`: a previous gateway may have received it."""
    params = _params(request)
    if is_about_tasks(request.method, params):
        return failure(request, "gateway_unreachable", f"{why} Tasks are durable: send it again later.", None)
    if is_later_round(params):
        message = f"{why} The answers were not sent; earlier effects of the call may have happened."
        return failure(request, "gateway_unreachable", message, "maybe")
    message = f"{why} No tool was executed." if was_sent else f"{why} The request was not executed."
    return failure(request, "gateway_unreachable", message, "no")


def overloaded(request: Sent) -> bytes:
    """Return the error for a request beyond the limit of open requests."""
    params, why = _params(request), f"At most {MAX_OPEN} requests can be open at once; wait for responses."
    if is_about_tasks(request.method, params):
        return failure(request, "overloaded", why, None)
    if is_later_round(params):
        return failure(request, "overloaded", why, "maybe")
    return failure(request, "overloaded", f"{why} The request was not executed.", "no")


def _params(request: Sent) -> dict[str, Any]:
    params = parse(request.line).get("params") if request.line is not None else None
    return params if isinstance(params, dict) else {}


def failure(request: Sent, error_type: str, message: str, executed: str | None) -> bytes:
    """Return an error response in the gateway's format."""
    code = -32603 if request.stateless else _CODES.get(error_type, -32000)
    data: dict[str, Any] = {"error_type": error_type, "correlation_id": os.urandom(8).hex()}
    if executed is not None:
        data["executed"] = executed
    data["legacy_code"] = _CODES.get(error_type, -32000)
    error = encode({"code": code, "message": message, "data": data})
    return b'{"jsonrpc":"2.0","id":' + request.id + b',"error":' + error + b"}\n"
