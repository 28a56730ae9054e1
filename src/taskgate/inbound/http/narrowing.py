"""Narrowing by query and headers: a request can restrict itself to fewer servers and tools.

Callers repeat the same restriction with every request, so the parsed value is cached. Whether it is allowed is decided
by the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from taskgate.core.scoping.session_request import NO_REQUEST, SERVERS_HEADER, TOOLS_HEADER, SessionRequest

_SERVERS: Final = SERVERS_HEADER.encode("ascii")
_TOOLS: Final = TOOLS_HEADER.encode("ascii")


def narrowing_of(
    query: bytes, headers: dict[bytes, bytes], every_header: Iterable[tuple[bytes, bytes]]
) -> SessionRequest:
    """Return the restriction of one HTTP request. A repeated header narrows repeatedly. Raises CallerError."""
    if not query and _SERVERS not in headers and _TOOLS not in headers:
        return NO_REQUEST
    return _read(query, tuple((name, value) for name, value in every_header if name in (_SERVERS, _TOOLS)))


@lru_cache(maxsize=4096)
def _read(query: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> SessionRequest:
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return SessionRequest.from_query(query.decode("latin-1")).narrowed(SessionRequest.from_pairs(pairs))
