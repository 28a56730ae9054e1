"""Refusals that are made before a request is read: what they may state about the call that the request is about.

A refusal by address, credential or session is written without a look at the body. Afterwards the body is looked at, because a
request about a task is about the task's call, of which the refusal knows nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round

MOST_LOOKED_AT: Final = 256 * 1024
"""Bytes of a refused request. What is longer is not worth the time, and its error states nothing."""


class _Params(msgspec.Struct):
    name: Any = None
    arguments: Any = None
    requestState: Any = msgspec.UNSET


class _Refused(msgspec.Struct):
    method: str = ""
    params: _Params | None = None


_decoder = msgspec.json.Decoder(_Refused)


def without_claims(error: bytes, request: bytes) -> bytes:
    """The body of the refusal, without an `executed` that only this request justifies."""
    if b'"executed"' not in error:
        return error
    if len(request) > MOST_LOOKED_AT:
        return _stating(error, None)
    try:
        message = _decoder.decode(request)
    except (msgspec.DecodeError, RecursionError):
        return error  # it is no request, so nothing was executed for it
    found = message.params or _Params()
    params: dict[str, Any] = {"name": found.name, "arguments": found.arguments}
    if found.requestState is not msgspec.UNSET:
        params["requestState"] = found.requestState
    if is_about_tasks(message.method, params):
        return _stating(error, None)
    return _stating(error, "maybe") if is_later_round(params) else error


def _stating(error: bytes, executed: str | None) -> bytes:
    reply = wire.members_of(error)
    problem = wire.members_of(reply["error"])
    data = wire.members_of(problem["data"])
    del data["executed"]
    if executed is not None:
        data["executed"] = wire.raw(executed)
    problem["data"] = wire.Raw(wire.join(data))
    return wire.join({**reply, "error": wire.Raw(wire.join(problem))})
