"""The head of a POST request to `/mcp`, with everything that follows from the head alone."""

from __future__ import annotations

from typing import Final

from taskgate.core.generations.generation import STATELESS_REVISIONS
from taskgate.inbound.http.asgi import Headers

_STATELESS: Final = frozenset(revision.encode("ascii") for revision in STATELESS_REVISIONS)
_LENGTH: Final = b"content-length"


class PostHead:
    __slots__ = (
        "every_header",
        "headers",
        "is_json",
        "is_stateless",
        "keep_alive",
        "path",
        "prefers_stream",
        "query",
    )

    def __init__(
        self,
        url: bytes,
        every_header: Headers,
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool = True,
    ) -> None:
        self.path, _, self.query = url.partition(b"?")
        self.every_header = every_header
        self.headers = headers
        """The last value of each name."""
        self.keep_alive = keep_alive
        self.is_json = headers.get(b"content-type", b"").lower().startswith(b"application/json")
        self.is_stateless = headers.get(b"mcp-protocol-version") in _STATELESS
        self.prefers_stream = headers.get(b"accept", b"").lstrip().startswith(b"text/event-stream")
        """Whether the caller accepts event streams first, or only: it receives its replies as streams."""

    @property
    def url(self) -> bytes:
        return self.path + b"?" + self.query if self.query else self.path

    @property
    def declared_bytes(self) -> int:
        """The declared length of the body; the largest possible if it is not a number."""
        declared = self.headers.get(_LENGTH, b"0")
        return int(declared) if declared.isdigit() else 1 << 62
