"""What the head of one request may be: so many headers, so many bytes, one Host.

The HTTP parser keeps an unfinished header in memory without a limit and calls us only when it is complete, so bytes are also
counted as they come. The same goes for what comes in a body without being body: chunk sizes, their extensions, trailers.
"""

from __future__ import annotations

from taskgate.gateway.plan import Limits


class HeadersRefused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class HeaderLimits:
    """Of one connection; `begin` starts the next request. A read that begins a request is counted by its headers only."""

    __slots__ = ("_bytes", "_count", "_fresh", "_has_host", "_idle", "_limits", "_received")

    def __init__(self, limits: Limits) -> None:
        self.begin(limits)

    def begin(self, limits: Limits) -> None:
        self._limits = limits
        self._count = self._bytes = self._received = self._idle = 0
        self._has_host = False
        self._fresh = True

    def url(self, part: bytes) -> None:
        self._bytes += len(part)
        self._check_bytes(self._bytes)

    def header(self, name: bytes, value: bytes) -> None:
        """A complete header, its name in lower case. Raises HeadersRefused."""
        self._count += 1
        self._bytes += len(name) + len(value) + 4
        if name == b"host":
            if self._has_host:
                raise HeadersRefused(400, "A request has one Host header.")
            self._has_host = True
        if self._count > self._limits.header_count:
            raise HeadersRefused(431, f"A request may have at most {self._limits.header_count} headers.")
        self._check_bytes(self._bytes)

    def unfinished(self, size: int) -> None:
        """So many bytes came, and the head of the request is still not complete. Raises HeadersRefused."""
        if self._fresh:
            self._fresh = False
            return
        self._received += size
        self._check_bytes(self._received)

    def body(self, size: int, progress: int) -> None:
        """So many bytes came after the head, of which so many were body. Raises HeadersRefused."""
        self._idle = 0 if progress else self._idle + size
        self._check_bytes(self._idle)

    def _check_bytes(self, size: int) -> None:
        if size > self._limits.header_bytes:
            raise HeadersRefused(431, f"The headers of a request may have at most {self._limits.header_bytes} bytes.")
