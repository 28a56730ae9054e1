"""What proves to a server who we are: headers that may have to be fetched first, that end, and that may belong to one person.

The links that talk to a server send them and say when they were refused; who fetches and keeps them is not their concern. Which
account is missing, and where a person connects it, is told to the middle in the words of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from taskgate.core.evidence import Evidence, Moment
from taskgate.ports.upstream import CallFailed

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class LoginNeeded(CallFailed):
    """A server cannot be used before somebody has logged in there. Nothing was sent to it."""

    def __init__(self, server: str, why: str, what_to_do: str) -> None:
        message = f"The server {server} wants a login: {why}. Nothing was executed. {what_to_do}"
        super().__init__("upstream_unreachable", server, "wants a login", Evidence(Moment.NOT_SENT), message=message)


class AccountNeeded(LoginNeeded):
    """One person's account at a server is missing, has ended, or may do too little. That person can be asked to connect it."""

    keeps_its_kind = True

    def __init__(self, server: str, principal: str, why: str, scope: str | None = None) -> None:
        what_to_do = f"Connect your account: taskgate servers login {server} --principal {principal}"
        super().__init__(server, why, what_to_do)
        self.principal = principal
        self.reason = why
        self.scope = scope
        """What the login must ask for, where the server has said that more is needed."""


class UpstreamCredentials(Protocol):
    """The credentials of one server, for one principal where each has its own."""

    @property
    def headers(self) -> HeaderPairs:
        """To be sent with every request, as they are now."""
        ...

    async def ready(self) -> None:
        """Wait until there are headers that may be accepted. Raises LoginNeeded."""
        ...

    async def renew(self, refused: HeaderPairs, challenge: str = "") -> bool:
        """Whether there are others now than those that were refused with this `WWW-Authenticate`. Raises LoginNeeded."""
        ...


class ServerCredentials(Protocol):
    """Where the credentials of one server come from."""

    @property
    def per_principal(self) -> bool:
        """Whether each principal has its own, so that no two may share a conversation."""
        ...

    def of(self, principal: str) -> UpstreamCredentials:
        """Those of a principal; of everybody where all share them. The empty name stands for the gateway itself."""
        ...


class FixedHeaders:
    """A server that wants nothing, or only what the configuration gives it: there is nothing to fetch or renew."""

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


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """What a person is asked to agree to: their account at a server, to be used for one principal."""

    server: str
    principal: str
    resource: str
    scope: str | None = None


class LoginRefused(Exception):
    """A login that cannot be begun or finished. The message says why, for the person in front of the browser."""


class AccountConnector(Protocol):
    """Connects people's accounts at servers, and says who is connected."""

    async def page(self, server: str, principal: str, scope: str | None) -> str:
        """The address of our page where the person connects the account: the same one for as long as it is good."""
        ...

    async def wait(self, server: str, principal: str, scope: str | None, within_s: float) -> bool:
        """Wait until the account is connected, with at least these scopes, here or at another gateway on the same store. False
        when the time is over.
        """
        ...

    async def asked(self, ticket: str) -> ConnectRequest | None:
        """What our page is about; None if it is not known or too old."""
        ...

    async def begin(self, ticket: str, browser: str) -> str:
        """Where to send the browser, which is remembered. Raises LoginRefused."""
        ...

    async def finish(self, query: Mapping[str, str], browser: str) -> ConnectRequest:
        """The browser is back with a code: connect the account. Raises LoginRefused."""
        ...

    async def accounts(self, server: str) -> list[dict[str, Any]] | None:
        """Whose accounts are connected, and how they are; None for a server without accounts."""
        ...

    async def accounts_of(self, principal: str) -> dict[str, dict[str, Any]]:
        """Where somebody's own accounts are connected, by server, and how they are."""
        ...

    async def disconnect(self, server: str, principal: str) -> bool: ...

    def client_document(self) -> dict[str, Any]:
        """Who we are to authorization servers that look clients up by an address (client id metadata document)."""
        ...

    async def signing_keys(self) -> dict[str, Any]:
        """The public keys of what we sign (RFC 7517)."""
        ...


class AccountRows(Protocol):
    """Where accounts are kept: beside the store, or in it where gateways share one. Every method blocks."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None: ...

    def take(self, key: str) -> bytes | None:
        """Remove it, and give it to whoever comes first."""
        ...

    def listed(self, prefix: str) -> dict[str, bytes]: ...

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """Whether the work under this name is now ours alone, until it is released or the time is over."""
        ...

    def release(self, key: str, owner: str) -> None: ...
