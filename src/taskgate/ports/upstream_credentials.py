"""Credentials of the gateway at servers: headers that may have to be fetched first, that expire, and that may belong to one person.

The links to servers send them and report when they were refused; fetching and storing them is done elsewhere.
"""

from __future__ import annotations

from typing import Protocol

from taskgate.core.evidence import Evidence, Moment
from taskgate.ports.call_failure import CallFailed

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class LoginNeeded(CallFailed):
    """A server requires a login first. Nothing was sent to it."""

    def __init__(self, server: str, why: str, what_to_do: str) -> None:
        message = f"The server {server} requires a login: {why}. Nothing was executed. {what_to_do}"
        super().__init__("upstream_unreachable", server, "requires a login", Evidence(Moment.NOT_SENT), message=message)


class AccountNeeded(LoginNeeded):
    """One person's account at a server is missing, has expired, or lacks scopes. That person can be asked to connect it."""

    keeps_its_kind = True

    def __init__(self, server: str, principal: str, why: str, scope: str | None = None) -> None:
        what_to_do = f"Connect your account: taskgate servers login {server} --principal {principal}"
        super().__init__(server, why, what_to_do)
        self.principal = principal
        self.reason = why
        self.scope = scope
        """The scopes to request, if the server returned that more are needed."""


class UpstreamCredentials(Protocol):
    """The credentials of one server, for one principal where each has its own."""

    @property
    def headers(self) -> HeaderPairs:
        """The current headers, sent with every request."""
        ...

    async def ready(self) -> None:
        """Wait until there are headers that can be sent. Raises LoginNeeded."""
        ...

    async def renew(self, refused: HeaderPairs, challenge: str = "") -> bool:
        """Renew headers that were refused with this `WWW-Authenticate`; return whether there are others now. Raises LoginNeeded."""
        ...


class ServerCredentials(Protocol):
    """The source of the credentials of one server."""

    @property
    def per_principal(self) -> bool:
        """Whether each principal has its own credentials, so that no two may share a session with the server."""
        ...

    def of(self, principal: str) -> UpstreamCredentials:
        """Return the credentials of a principal, or the shared ones. The empty name is the gateway itself."""
        ...


class FixedHeaders:
    """A server without credentials, or only with configured headers: nothing to fetch or renew."""

    headers: HeaderPairs = ()
    per_principal = False

    def of(self, principal: str) -> UpstreamCredentials:
        return self

    async def ready(self) -> None:
        return

    async def renew(self, refused: HeaderPairs, challenge: str = "") -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedHeaders)

    def __hash__(self) -> int:
        return hash(FixedHeaders)


FIXED_HEADERS = FixedHeaders()
