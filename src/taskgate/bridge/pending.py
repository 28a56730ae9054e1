"""Track the client's open requests by inspecting the relayed lines at low cost.

The lines of the SDKs have one of a few forms, and the gateway's replies have one; other lines are parsed. This module does no I/O.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_ID = rb'("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?)'
_START = rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*'
_REQUEST = re.compile(_START + rb'"id"\s*:\s*' + _ID + rb'\s*,\s*"method"\s*:\s*"([^"\\]*)"')
_METHOD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"([^"\\]*)"')
_END = re.compile(rb',\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*' + _ID + rb"\s*\}\s*\Z")
_REPLY = re.compile(_START + rb'"id"\s*:\s*' + _ID + rb'\s*,\s*"(?:result|error)"')
_REPLY_FIRST = re.compile(rb'\s*\{\s*"(?:result|error)"')
_END_BYTES = 300
KEPT_BYTES = 64 * 1024
KEPT_TOTAL_BYTES = 16 << 20
MAX_OPEN = 65_536
STATELESS = b"io.modelcontextprotocol/protocolVersion"

# Idempotent methods, which may be sent again to the next gateway.
REPEATABLE = frozenset(
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
    """An open request of the client. `line` is None if it is too large to keep."""

    id: bytes
    method: str
    stateless: bool
    line: bytes | None
    again: bool = False
    """Whether it was already sent to a second gateway."""


class ClientLine(NamedTuple):
    """The kind of a client's line: a request with its id, a notification, or a response (neither id nor method)."""

    id: bytes | None
    method: str


_ANSWER = ClientLine(None, "")


def classify(line: bytes) -> ClientLine:
    """Return the kind of a client's line. An invalid line counts as a response; the gateway reports the error."""
    try:
        return _classify(line)
    except ValueError:
        return _ANSWER


def _classify(line: bytes) -> ClientLine:
    """Classify a line. Raises ValueError if the id is not JSON."""
    found = _REQUEST.match(line)
    if found:
        return ClientLine(_canonical(found[1]), found[2].decode("utf-8", "replace"))
    if _REPLY.match(line) or _REPLY_FIRST.match(line):
        return _ANSWER
    named = _METHOD.match(line)
    if named:
        method = named[1].decode("utf-8", "replace")
        if method.startswith("notifications/"):
            return ClientLine(None, method)
        at_the_end = _END.search(line[-_END_BYTES:])
        if at_the_end:
            return ClientLine(_canonical(at_the_end[1]), method)
    return _parsed(line)


def _parsed(line: bytes) -> ClientLine:
    message = parse(line)
    method = message.get("method")
    if not isinstance(method, str):
        return _ANSWER
    given = message.get("id")
    return ClientLine(encode(given) if isinstance(given, str | int | float) else None, method)


def parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _param(line: bytes, name: str) -> str | int | None:
    """Return a parameter that is a string or an integer, or None."""
    params = parse(line).get("params")
    value = params.get(name) if isinstance(params, dict) else None
    return value if isinstance(value, str | int) else None


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _canonical(raw: bytes) -> bytes:
    """Return the id as the gateway writes it: without unnecessary escapes."""
    return encode(json.loads(raw)) if b"\\" in raw else raw


def answered(line: bytes) -> bytes | None:
    """Return the id of a response of the gateway, or None if the line is not a response."""
    found = _REPLY.match(line)
    return _canonical(found[1]) if found else None


class Pending:
    """The open requests, oldest first, and the session setup that a new gateway needs."""

    def __init__(self) -> None:
        self.open: dict[bytes, Sent] = {}
        self._session_setup: dict[str, bytes] = {}
        self._subscriptions: dict[str, bytes] = {}
        self._repeated: set[bytes] = set()
        self._own: set[bytes] = set()
        self._kept_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the limit of open requests is reached, so that none may be sent."""
        return len(self.open) >= MAX_OPEN

    def sent(self, line: bytes) -> None:
        """Record a line that was written to a gateway completely."""
        seen = classify(line)
        if seen.id in self._own:
            return
        if seen.id is not None:
            self._close(seen.id)
            fits = len(line) <= KEPT_BYTES and self._kept_bytes + len(line) <= KEPT_TOTAL_BYTES
            kept = line if fits else None
            self._kept_bytes += len(line) if fits else 0
            self.open[seen.id] = Sent(seen.id, seen.method, STATELESS in line, kept, again=seen.id in self._repeated)
        if seen.method == "notifications/cancelled":
            # The client expects no response to a cancelled request.
            self._close(encode(_param(line, "requestId")))
        self._remember(seen, line)

    def dropped(self, line: bytes) -> None:
        """Record the session setup of a line that is not sent, for the next gateway."""
        seen = classify(line)
        if seen.method == "notifications/initialized":
            self._remember(seen, line)

    def _close(self, request_id: bytes) -> None:
        known = self.open.pop(request_id, None)
        if known is not None and known.line is not None:
            self._kept_bytes -= len(known.line)

    def received(self, line: bytes) -> bool:
        """Record a line of the gateway. Return whether it is for the client."""
        known = answered(line)
        if known is None:
            return True
        self._close(known)
        self._repeated.discard(known)
        if known in self._own:
            self._own.discard(known)
            return False
        return True

    def _remember(self, seen: ClientLine, line: bytes) -> None:
        if seen.method in ("initialize", "notifications/initialized", "logging/setLevel"):
            self._session_setup[seen.method] = line
        elif seen.method in ("resources/subscribe", "resources/unsubscribe"):
            uri = _param(line, "uri")
            if not isinstance(uri, str):
                return
            self._subscriptions.pop(uri, None)
            if seen.method == "resources/subscribe" and len(self._subscriptions) < MAX_OPEN:
                self._subscriptions[uri] = line

    def replay(self, prefix: str, asked_again: list[Sent]) -> list[bytes]:
        """Return the lines that set up the session on a new gateway. The client does not receive the responses to them.

        Requests that are sent again anyway are not included.
        """
        repeated_ids = {sent.id for sent in asked_again}
        found: list[bytes] = []
        for number, line in enumerate([*self._session_setup.values(), *self._subscriptions.values()]):
            message = parse(line)
            if "id" not in message:
                found.append(line)
            elif encode(message["id"]) not in repeated_ids:
                own = f"{prefix}-{number}"
                self._own.add(encode(own))
                found.append(encode({**message, "id": own}) + b"\n")
        return found

    def forget(self, sent: Sent) -> None:
        """Drop a request that was answered with an error, so that it is not replayed."""
        self._repeated.discard(sent.id)
        if sent.method in self._session_setup:
            del self._session_setup[sent.method]

    def lost(self) -> tuple[list[Sent], list[Sent]]:
        """Return the requests to send to the next gateway, and those to answer now, after the gateway has ended."""
        again = [sent for sent in self.open.values() if sent.method in REPEATABLE and sent.line and not sent.again]
        over = [sent for sent in self.open.values() if sent not in again]
        self.open.clear()
        self._kept_bytes = 0
        self._own.clear()
        self._repeated = {sent.id for sent in again}
        return again, over


def unsent(line: bytes) -> Sent | None:
    """Return the request in a line that was not sent, or None if it contains no request."""
    seen = classify(line)
    return Sent(seen.id, seen.method, STATELESS in line, line) if seen.id is not None else None
