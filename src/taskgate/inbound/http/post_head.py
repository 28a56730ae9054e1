"""The head of a POST request to `/mcp`, with everything that follows from the head alone.

A connection keeps it while its caller repeats the same head (see `RepeatedHead`), so that this is determined once for many
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskgate.core.generations.generation import STATELESS_REVISIONS
from taskgate.inbound.http.asgi import Headers

if TYPE_CHECKING:
    from taskgate.access.authorize import Authorized
    from taskgate.core.identity.caller import Caller
    from taskgate.gateway.requests.session import Session

_STATELESS: Final = frozenset(revision.encode("ascii") for revision in STATELESS_REVISIONS)
_LENGTH: Final = b"content-length"


class PostHead:
    __slots__ = (
        "authorized",
        "every_header",
        "headers",
        "is_json",
        "is_stateless",
        "keep_alive",
        "path",
        "prefers_stream",
        "query",
        "session",
        "session_caller",
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
        self.authorized: Authorized | None = None
        """How every request with this head on this connection is authorized under the plan with which the connection keeps
        the head; None if it has a credential, which is checked for each request."""
        self.session: Session | None = None
        """The session that a caller has used with this head."""
        self.session_caller: Caller | None = None

    def keep_authorization(self, authorized: Authorized) -> None:
        self.authorized = authorized

    def keep_session(self, session: Session | None, caller: Caller) -> None:
        self.session, self.session_caller = session, caller

    @property
    def url(self) -> bytes:
        return self.path + b"?" + self.query if self.query else self.path

    @property
    def declared_bytes(self) -> int:
        """The declared length of the body; the largest possible if it is not a number."""
        declared = self.headers.get(_LENGTH, b"0")
        return int(declared) if declared.isdigit() else 1 << 62

    def without_length(self) -> PostHead:
        """Return the head for further requests, whose bodies have other lengths."""
        kept = [header for header in self.every_header if header[0] != _LENGTH]
        return PostHead(self.url, kept, dict(kept), keep_alive=self.keep_alive)
