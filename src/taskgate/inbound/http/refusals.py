"""What the error of a rejected request may state about `executed`.

A rejection because of the address, credential or session is created without parsing the body. The body is parsed
afterwards, because a task request refers to the call of the task, about which the rejection proves nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round
from taskgate.mcp.json_errors import UNDECODABLE

MAX_EXAMINED_BYTES: Final = 256 * 1024
"""Longer bodies of rejected requests are not parsed, and their errors do not state `executed`."""


class _Params(msgspec.Struct):
    name: Any = None
    arguments: Any = None
    requestState: Any = msgspec.UNSET


class _Refused(msgspec.Struct):
    method: str = ""
    params: _Params | None = None


_decoder = msgspec.json.Decoder(_Refused)


def without_unproved_executed(error: bytes, request: bytes) -> bytes:
    """Return the error body without an `executed` that holds only for this request and not for an earlier call."""
    if b'"executed"' not in error:
        return error
    if len(request) > MAX_EXAMINED_BYTES:
        return _stating(error, None)
    try:
        message = _decoder.decode(request)
    except UNDECODABLE:
        return error  # not a request, so nothing was executed
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
