"""Proofs of identity: a header or certificate, a console session, a login, a local user, or another gateway.

Each resolves to a credential. The proof of an open response is kept, so that it can be resolved again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from taskgate.access.arrival import LOCAL, Arrival, Arrivals
from taskgate.access.credentials import CredentialRefused, Credentials
from taskgate.core.identity.access import AccessRefusal
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.identity.identity import Identity, tenant_of
from taskgate.ports.caller_credentials import Credential, LoginRefused
from taskgate.shown_fields import repr_without

Headers = Sequence[tuple[bytes, bytes]]


class Proof(Protocol):
    @property
    def shows_credential(self) -> bool:
        """Whether the request has a credential."""
        ...

    def address(self, arrivals: Arrivals) -> str:
        """Return the address under which failed attempts are counted."""
        ...

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        """Return the credential. Raises CredentialRefused, NotVerifiedYet, and NeedsLookup."""
        ...


class NeedsLookup(Exception):
    """The proof must be looked up with `look_up`. `is_guess`: it may be a guess, so it counts as an attempt."""

    def __init__(self, look_up: Callable[[Credentials], Awaitable[Credential]], *, is_guess: bool) -> None:
        super().__init__()
        self.look_up = look_up
        self.is_guess = is_guess


class HttpProof(msgspec.Struct, eq=False):
    """The `Authorization` header of a request, or else the client's certificate."""

    arrival: Arrival
    authorization: bytes | None
    every_header: Headers

    __repr__ = repr_without("authorization", "every_header")

    @property
    def shows_credential(self) -> bool:
        return self.authorization is not None

    def address(self, arrivals: Arrivals) -> str:
        return arrivals.caller_address(self.arrival, self.every_header)

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        if self.authorization is not None:
            return credentials.in_header(self.authorization, arrivals.certificate_thumbprint(self.arrival))
        names = arrivals.certificate_names(self.arrival, self.every_header)
        expiry = arrivals.certificate_expiry(self.arrival)
        return (credentials.in_certificate(names, expiry) if names else None) or credentials.none_shown()


class SessionLookup(Protocol):
    """The store of console sessions."""

    async def session(self, cookie: str, credentials: Credentials) -> Credential | None:
        """Return the credential of the cookie's session, or None if there is no such session."""
        ...


class SessionProof(msgspec.Struct, frozen=True):
    """A session cookie of the console, or none."""

    cookie: str | None
    sessions: SessionLookup
    where: HttpProof

    __repr__ = repr_without("cookie")

    @property
    def shows_credential(self) -> bool:
        return False  # Cookies are signed: an invalid one is stale, not a guess.

    def address(self, arrivals: Arrivals) -> str:
        return self.where.address(arrivals)

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        if self.cookie is None:
            raise CredentialRefused(AccessRefusal.NO_CREDENTIAL)
        raise NeedsLookup(self._look_up, is_guess=False)

    async def _look_up(self, credentials: Credentials) -> Credential:
        assert self.cookie is not None
        found = await self.sessions.session(self.cookie, credentials)
        if found is None:
            raise CredentialRefused(AccessRefusal.NO_CREDENTIAL)
        return found


class CodeLookup(Protocol):
    """The store of one-time login codes."""

    async def redeem(self, code: str, credentials: Credentials) -> Credential | None:
        """Return the credential of the code's user, or None if the code is unknown, expired or used."""
        ...


class CodeProof(msgspec.Struct, frozen=True):
    """A one-time code that logs a person in."""

    code: str
    codes: CodeLookup
    where: HttpProof
    shows_credential = True

    def address(self, arrivals: Arrivals) -> str:
        return self.where.address(arrivals)

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        raise NeedsLookup(self._look_up, is_guess=True)

    async def _look_up(self, credentials: Credentials) -> Credential:
        found = await self.codes.redeem(self.code, credentials)
        if found is None:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it was already used or has expired")
        return found


class ProviderProof(msgspec.Struct, frozen=True):
    """The response of the OpenID provider in a browser's redirect. Verifying it costs a request to the provider."""

    finish: Callable[[], Awaitable[Identity]]
    """Raises LoginRefused and IssuerUnavailable."""
    where: HttpProof
    shows_credential = True

    def address(self, arrivals: Arrivals) -> str:
        return self.where.address(arrivals)

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        raise NeedsLookup(self._look_up, is_guess=True)

    async def _look_up(self, credentials: Credentials) -> Credential:
        try:
            identity = await self.finish()
        except LoginRefused as refused:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, str(refused)) from None
        credentials.refuse_recalled(identity)
        return Credential(identity)


class LocalProof(msgspec.Struct, frozen=True):
    """A user of this machine, identified by the kernel (Unix socket) or as the one who started the gateway.

    `proved`: it is the gateway's user, according to the kernel or to a key that only this user can read.
    """

    principal: str
    proved: bool
    shows_credential = True

    def address(self, arrivals: Arrivals) -> str:
        return LOCAL

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        if not self.proved:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it belongs to another user")
        return Credential(Identity(self.principal))


class HopProof(msgspec.Struct, frozen=True):
    """A request that another gateway on the same store has authorized, signed and forwarded."""

    caller: Caller
    digest: str = ""
    """The digest of the caller's token, if it is the gateway's own."""
    issued_at: int | None = None
    """When the caller's token was issued, if an issuer did."""
    shows_credential = True

    def address(self, arrivals: Arrivals) -> str:
        return "internal"

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        """Return a credential bound to the authorized scope. Revocations since then are checked here too."""
        caller = self.caller
        if self.digest:
            credentials.refuse_revoked(self.digest)
        claims = {} if self.issued_at is None else {"iat": self.issued_at}
        identity = Identity(
            caller.principal, caller.roles, caller.scope, tenant=tenant_of(caller.principal), claims=claims
        )
        if caller.principal != ANONYMOUS and claims:
            credentials.refuse_recalled(identity)
        return Credential(identity)
