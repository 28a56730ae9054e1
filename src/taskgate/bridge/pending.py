"""Which requests of the client are open: told from the look of the lines, so that passing them on costs next to nothing.

The lines of the SDKs have one of few beginnings, and our own replies have one; anything else is parsed. Knows nothing of sockets.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from taskgate.mcp.earlier_calls import is_about_tasks, is_later_round

_ID = rb'("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?)'
_START = rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*'
_REQUEST = re.compile(_START + rb'"id"\s*:\s*' + _ID + rb'\s*,\s*"method"\s*:\s*"([^"\\]*)"')
_METHOD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"([^"\\]*)"')
_END = re.compile(rb',\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*' + _ID + rb"\s*\}\s*\Z")
_REPLY = re.compile(_START + rb'"id"\s*:\s*' + _ID + rb'\s*,\s*"(?:result|error)"')
_REPLY_FIRST = re.compile(rb'\s*\{\s*"(?:result|error)"')
_END_BYTES = 300
KEPT_BYTES = 64 * 1024
KEPT_IN_ALL = 16 << 20
MOST_OPEN = 65_536
STATELESS = b"io.modelcontextprotocol/protocolVersion"

# May be asked again of the next gateway: they change nothing, or nothing that matters if it happens twice.
HARMLESS = frozenset(
    {
        "initialize",
        "ping",
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "skills/list",
        "resources/subscribe",
        "resources/unsubscribe",
        "logging/setLevel",
        "subscriptions/listen",
        "tasks/get",
        "tasks/list",
        "tasks/result",
    }
)


class Sent(NamedTuple):
    """A request of the client that is open. `line` is None if there was no room to keep it."""

    id: bytes
    method: str
    stateless: bool
    line: bytes | None
    again: bool = False
    """It has been sent to a second gateway already."""


class Seen(NamedTuple):
    """What a line of the client is: a request with its id, a notification, or an answer (neither id nor method)."""

    id: bytes | None
    method: str


_ANSWER = Seen(None, "")


def look(line: bytes) -> Seen:
    """What kind of line the client wrote; one that cannot be read counts as an answer, the gateway will say what is wrong."""
    try:
        return _seen(line)
    except ValueError:
        return _ANSWER


def _seen(line: bytes) -> Seen:
    """Raises ValueError if the id is no JSON."""
    found = _REQUEST.match(line)
    if found:
        return Seen(_canonical(found[1]), found[2].decode("utf-8", "replace"))
    if _REPLY.match(line) or _REPLY_FIRST.match(line):
        return _ANSWER
    named = _METHOD.match(line)
    if named:
        method = named[1].decode("utf-8", "replace")
        if method.startswith("notifications/"):
            return Seen(None, method)
        at_the_end = _END.search(line[-_END_BYTES:])
        if at_the_end:
            return Seen(_canonical(at_the_end[1]), method)
    return _parsed(line)


def _parsed(line: bytes) -> Seen:
    said = parse(line)
    method = said.get("method")
    if not isinstance(method, str):
        return _ANSWER
    given = said.get("id")
    return Seen(encode(given) if isinstance(given, str | int | float) else None, method)


def parse(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _param(line: bytes, name: str) -> str | int | None:
    """A param by which something is known: a text or a whole number, or None if the line has no such thing."""
    params = parse(line).get("params")
    value = params.get(name) if isinstance(params, dict) else None
    return value if isinstance(value, str | int) else None


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _canonical(raw: bytes) -> bytes:
    """As the gateway writes it back: escapes are undone where they need not be."""
    return encode(json.loads(raw)) if b"\\" in raw else raw


def answered(line: bytes) -> bytes | None:
    """The id that a line of the gateway answers, or None if it is no answer."""
    found = _REPLY.match(line)
    return _canonical(found[1]) if found else None


class Pending:
    """The open requests, oldest first, and what a new gateway must be told before the client can go on with it."""

    def __init__(self) -> None:
        self.open: dict[bytes, Sent] = {}
        self._opening: dict[str, bytes] = {}
        self._watched: dict[str, bytes] = {}
        self._asked_twice: set[bytes] = set()
        self._own: set[bytes] = set()
        self._kept_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request can be remembered, so that none may be sent."""
        return len(self.open) >= MOST_OPEN

    def sent(self, line: bytes) -> None:
        """A whole line was written to a gateway."""
        seen = look(line)
        if seen.id in self._own:
            return
        if seen.id is not None:
            self._close(seen.id)
            fits = len(line) <= KEPT_BYTES and self._kept_bytes + len(line) <= KEPT_IN_ALL
            kept = line if fits else None
            self._kept_bytes += len(line) if fits else 0
            self.open[seen.id] = Sent(seen.id, seen.method, STATELESS in line, kept, seen.id in self._asked_twice)
        if seen.method == "notifications/cancelled":
            # The client expects no answer to what it cancelled.
            self._close(encode(_param(line, "requestId")))
        self._remember(seen, line)

    def dropped(self, line: bytes) -> None:
        """A line that is no request will not be sent: what it changes in the session is kept for the next gateway."""
        seen = look(line)
        if seen.method == "notifications/initialized":
            self._remember(seen, line)

    def _close(self, request_id: bytes) -> None:
        known = self.open.pop(request_id, None)
        if known is not None and known.line is not None:
            self._kept_bytes -= len(known.line)

    def received(self, line: bytes) -> bool:
        """A line came from the gateway: is it for the client?"""
        known = answered(line)
        if known is None:
            return True
        self._close(known)
        self._asked_twice.discard(known)
        if known in self._own:
            self._own.discard(known)
            return False
        return True

    def _remember(self, seen: Seen, line: bytes) -> None:
        if seen.method in ("initialize", "notifications/initialized", "logging/setLevel"):
            self._opening[seen.method] = line
        elif seen.method in ("resources/subscribe", "resources/unsubscribe"):
            uri = _param(line, "uri")
            if not isinstance(uri, str):
                return
            self._watched.pop(uri, None)
            if seen.method == "resources/subscribe" and len(self._watched) < MOST_OPEN:
                self._watched[uri] = line

    def replay(self, prefix: str, asked_again: list[Sent]) -> list[bytes]:
        """The lines that bring a new gateway where the last one was; the client will not see the answers to them.

        What is asked again anyway is not replayed: its answer is wanted.
        """
        wanted = {sent.id for sent in asked_again}
        found: list[bytes] = []
        for number, line in enumerate([*self._opening.values(), *self._watched.values()]):
            said = parse(line)
            if "id" not in said:
                found.append(line)
            elif encode(said["id"]) not in wanted:
                own = f"{prefix}-{number}"
                self._own.add(encode(own))
                found.append(encode({**said, "id": own}) + b"\n")
        return found

    def forget(self, sent: Sent) -> None:
        """The client got an error for this, so it is not replayed to the next gateway."""
        self._asked_twice.discard(sent.id)
        if sent.method in self._opening:
            del self._opening[sent.method]

    def lost(self) -> tuple[list[Sent], list[Sent]]:
        """The gateway is gone: what can be asked of the next one, and what must be answered now."""
        again = [sent for sent in self.open.values() if sent.method in HARMLESS and sent.line and not sent.again]
        over = [sent for sent in self.open.values() if sent not in again]
        self.open.clear()
        self._kept_bytes = 0
        self._own.clear()
        self._asked_twice = {sent.id for sent in again}
        return again, over


def unsent(line: bytes) -> Sent | None:
    """The request in a line that never reached a gateway; None if there is none in it."""
    seen = look(line)
    return Sent(seen.id, seen.method, STATELESS in line, line) if seen.id is not None else None


# The errors of the bridge. `executed` is about the call: the request's own, or an earlier one that the request refers to.
# The bridge knows nothing about earlier calls: an error about a task has no `executed`, and one of a later round is never `no`.

_CODES = {"overloaded": -32013}


def died(request: Sent) -> bytes:
    """The gateway ended while it handled this request."""
    if is_about_tasks(request.method, _params(request)):
        message = "The local gateway ended while it handled this request. Tasks are kept: ask again."
        return failure(request, "gateway_unreachable", message, None)
    if request.method in HARMLESS:
        message = "The local gateway ended while it handled this request. No tool was run for it. Send it again."
        return failure(request, "gateway_unreachable", message, "no")
    message = "The local gateway ended while this call was under way. It may or may not have taken effect."
    return failure(request, "outcome_unknown", message, "maybe")


def unreached(request: Sent, why: str, *, was_sent: bool) -> bytes:
    """No gateway can be reached. `was_sent`: one that has ended since may have had the request, which is harmless."""
    params = _params(request)
    if is_about_tasks(request.method, params):
        return failure(request, "gateway_unreachable", f"{why} Tasks are kept: ask again later.", None)
    if is_later_round(params):
        message = f"{why} These answers were not sent; what the call did before it asked may have taken effect."
        return failure(request, "gateway_unreachable", message, "maybe")
    message = f"{why} No tool was run for it." if was_sent else f"{why} It was not executed."
    return failure(request, "gateway_unreachable", message, "no")


def overloaded(request: Sent) -> bytes:
    """Too many requests are open to send another one."""
    params, why = _params(request), f"At most {MOST_OPEN} requests can be open at once; wait for some to be answered."
    if is_about_tasks(request.method, params):
        return failure(request, "overloaded", why, None)
    if is_later_round(params):
        return failure(request, "overloaded", why, "maybe")
    return failure(request, "overloaded", f"{why} It was not executed.", "no")


def _params(request: Sent) -> dict[str, Any]:
    params = parse(request.line).get("params") if request.line is not None else None
    return params if isinstance(params, dict) else {}


def failure(request: Sent, error_type: str, message: str, executed: str | None) -> bytes:
    """An error of the bridge's own, in the form of the gateway's."""
    code = -32603 if request.stateless else _CODES.get(error_type, -32000)
    data: dict[str, Any] = {"error_type": error_type, "correlation_id": os.urandom(8).hex()}
    if executed is not None:
        data["executed"] = executed
    data["legacy_code"] = _CODES.get(error_type, -32000)
    error = encode({"code": code, "message": message, "data": data})
    return b'{"jsonrpc":"2.0","id":' + request.id + b',"error":' + error + b"}\n"
