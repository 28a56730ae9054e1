"""Credentials on both sides: verifying what callers show, and proving to servers who we are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from taskgate import clock
from taskgate.core.evidence import Evidence, Moment
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.identity import Identity
from taskgate.ports.call_failure import CallFailed


class IssuerUnavailable(Exception):
    """Whether a credential is good cannot be found out now. The message says why, for the operator's log."""


class LoginRefused(Exception):
    """A login with a provider came to nothing. The message says why and may be shown."""


class PendingLogin(msgspec.Struct, array_like=True, frozen=True):
    """A login under way, as the browser keeps it: what the provider's answer must fit, and where to go afterwards."""

    state: str
    nonce: str
    verifier: str
    back: str
    fresh: bool
    at: int


class PeopleLogin(Protocol):
    """Logs people in with somebody who knows them."""

    async def begin(self, redirect_uri: str, back: str, *, fresh: bool) -> tuple[str, PendingLogin]:
        """Where to send the browser, and what it must bring back. Raises IssuerUnavailable."""

    async def finish(self, pending: PendingLogin, answer: Mapping[str, str], redirect_uri: str) -> Identity:
        """The person who logged in. Raises LoginRefused and IssuerUnavailable."""


class CredentialRecords(Protocol):
    """What is kept about credentials beyond the configuration."""

    def is_revoked(self, digest: str) -> bool:
        """Whether the token of ours with this digest was revoked before its time."""

    def is_recalled(self, identity: Identity) -> bool:
        """Whether credentials of this subject that were issued when this one was are refused."""

    def note(self, identity: Identity) -> None:
        """A credential of an issuer was verified: this is who its subject is now."""


@dataclass(frozen=True, slots=True, eq=False)
class Credential:
    """A verified credential."""

    identity: Identity
    expiry: clock.Expiry | None = None
    """When it ends; None: not by itself."""
    fresh: clock.Expiry | None = None
    """Until when the verification counts; afterwards its issuer is asked again. None: until `expiry`."""
    person: Approver | None = None
    """The person of a console session, with when they logged in."""
    digest: str = ""
    """Of a token of the configuration, by which it is revoked."""


class CredentialVerifier(Protocol):
    @property
    def issuers(self) -> tuple[str, ...]:
        """Who gives out credentials for this gateway."""

    def remembered(self, credential: bytes) -> Credential | None:
        """A credential that was verified before, while that counts."""

    async def verify(self, credential: bytes) -> Credential:
        """Raises TokenRefused, and IssuerUnavailable."""

    async def close(self) -> None: ...


# What proves to a server who we are: headers that may have to be fetched first, that end, and that may belong to one
# person.
#
# The links that talk to a server send them and say when they were refused; who fetches and keeps them is not their
# concern. Which account is missing, and where a person connects it, is told to the middle in the words of this module.

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


class AccountLoginRefused(Exception):
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
        """Where to send the browser, which is remembered. Raises AccountLoginRefused."""
        ...

    async def begin_shared(self, server: str, browser: str) -> str:
        """The same for the account that all callers share, which has no page of its own. Raises AccountLoginRefused."""
        ...

    async def finish(
        self, query: Mapping[str, str], browser: str, may_connect: Callable[[str], bool]
    ) -> ConnectRequest:
        """The browser is back with a code: connect the account, if the person may do so for its principal (empty: the shared
        account). Raises AccountLoginRefused.
        """
        ...

    async def accounts(self, server: str) -> list[dict[str, Any]] | None:
        """Whose accounts are connected, and how they are; None for a server without accounts."""
        ...

    async def accounts_of(self, principal: str) -> dict[str, dict[str, Any]]:
        """Where somebody's own accounts are connected, by server, and how they are."""
        ...

    async def disconnect(self, server: str, principal: str) -> bool:
        """From then on nothing is sent in its name, here at once and by other gateways on the same store within moments."""
        ...

    async def look_again(self) -> None:
        """Another gateway on the same store may have disconnected some."""
        ...

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

    def replace(self, key: str, value: bytes) -> bool:
        """Whether it was there to be replaced; what was removed meanwhile stays away."""
        ...

    def take(self, key: str) -> bytes | None:
        """Remove it, and give it to whoever comes first."""
        ...

    def remove(self, key: str) -> bool:
        """Remove it, if it is there, in a way that every gateway which shares the rows notices."""
        ...

    def listed(self, prefix: str) -> dict[str, bytes]: ...

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """Whether the work under this name is now ours alone, until it is released or the time is over."""
        ...

    def release(self, key: str, owner: str) -> None: ...
