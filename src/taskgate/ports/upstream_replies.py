"""Replies of a server to a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskgate.core.wire import Raw


class Result(msgspec.Struct, frozen=True):
    raw: bytes
    decoded: Any = None
    """The result as the server sent it, for decisions; None if it was too large to decode."""


class ErrorReply(msgspec.Struct, frozen=True):
    """A JSON-RPC error object, as the upstream wrote it."""

    raw: bytes
    code: int


class InputRequired(msgspec.Struct, frozen=True):
    """A stateless server needs answers before it continues."""

    requests: Mapping[str, Raw]
    state: Raw | None
    raw: bytes


Reply = Result | ErrorReply | InputRequired


class RelayedError(Exception):
    """A server's own error, passed to the caller unchanged."""

    def __init__(self, raw: bytes, code: int) -> None:
        super().__init__(f"upstream error {code}")
        self.raw = raw
        self.code = code
