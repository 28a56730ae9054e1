"""Limits on the head of a request: size, number of headers, and headers that must not be repeated."""

from __future__ import annotations

from typing import Final

from taskgate.core.settings.limits import Limits
from taskgate.inbound.http.asgi import Headers


class HeadersRefused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


ONCE: Final = frozenset(
    {b"host", b"origin", b"authorization", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
)


def check_head(url: bytes, headers: Headers, limits: Limits) -> None:
    """Check the number and size of headers, and that none of `ONCE` is repeated. Raises HeadersRefused.

    A proxy and the gateway could use different values of a repeated header. The caller skips this check for heads that are
    obviously short and have no repeated name.
    """
    if len(headers) > limits.header_count:
        raise HeadersRefused(431, f"A request may have at most {limits.header_count} headers.")
    size = len(url)
    already: set[bytes] = set()
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name in already:
            raise HeadersRefused(400, f"A request has one {name.decode().title()} header.")
        if name in ONCE:
            already.add(name)
    if size > limits.header_bytes:
        check_head_bytes(size, limits)


def check_head_bytes(size: int, limits: Limits) -> None:
    if size > limits.header_bytes:
        raise HeadersRefused(431, f"The headers of a request may have at most {limits.header_bytes} bytes.")
