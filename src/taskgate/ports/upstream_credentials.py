"""What proves to a server who we are, where that changes over time: an access token that is fetched and renewed."""

from __future__ import annotations

from typing import Protocol

from taskgate.core.evidence import Evidence, Moment
from taskgate.ports.upstream import CallFailed

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class LoginNeeded(CallFailed):
    """A server cannot be used before somebody has logged in there. Nothing was sent to it."""

    def __init__(self, server: str, why: str, what_to_do: str) -> None:
        message = f"The server {server} wants a login: {why}. Nothing was executed. {what_to_do}"
        super().__init__("upstream_unreachable", server, "wants a login", Evidence(Moment.NOT_SENT), message=message)


class UpstreamCredentials(Protocol):
    @property
    def headers(self) -> HeaderPairs:
        """To be sent with every request, as they are now."""
        ...

    async def ready(self) -> None:
        """Wait until there are headers that may be accepted. Raises LoginNeeded."""
        ...

    async def renew(self, refused: HeaderPairs) -> bool:
        """Whether there are others now than those that were refused. Raises LoginNeeded."""
        ...


class FixedHeaders:
    """A server that wants nothing, or only what the configuration gives it: there is nothing to fetch or renew."""

    headers: HeaderPairs = ()

    async def ready(self) -> None:
        return

    async def renew(self, refused: HeaderPairs) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedHeaders)

    def __hash__(self) -> int:
        return hash(FixedHeaders)


FIXED_HEADERS = FixedHeaders()
