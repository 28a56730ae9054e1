"""What a request shows to prove who sends it: a header or certificate, a console session, a login, a local user, another gateway.

Each kind resolves to a credential. A proof is kept with a response that stays open, so that it can be resolved again later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from taskgate.access.arrival import LOCAL, Arrival, Arrivals
from taskgate.access.credentials import CredentialRefused, Credentials
from taskgate.core.identity.access import AccessRefusal
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.identity.identity import Identity, tenant_of
from taskgate.ports.credentials import Credential, LoginRefused

Headers = Sequence[tuple[bytes, bytes]]


class Proof(Protocol):
    @property
    def shows_credential(self) -> bool:
        """Whether anything was shown at all."""
        ...

    def address(self, arrivals: Arrivals) -> str:
        """The address under which failed attempts are counted."""
        ...

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        """Raises CredentialRefused, NotVerifiedYet, and NeedsLookup."""
        ...


class NeedsLookup(Exception):
    """The proof can be resolved by reading the store only: `look_up` does. `is_guess`: what was shown may be a guess, so it counts
    as an attempt."""

    def __init__(self, look_up: Callable[[Credentials], Awaitable[Credential]], *, is_guess: bool) -> None:
        super().__init__()
        self.look_up = look_up
        self.is_guess = is_guess


class HttpProof:
    """The `Authorization` header of a request, or else the client's certificate."""

    __slots__ = ("arrival", "authorization", "every_header")

    def __init__(self, arrival: Arrival, authorization: bytes | None, every_header: Headers) -> None:
        self.arrival = arrival
        self.authorization = authorization
        self.every_header = every_header

    @property
    def shows_credential(self) -> bool:
        return self.authorization is not None

    def address(self, arrivals: Arrivals) -> str:
        return arrivals.caller_address(self.arrival, self.every_header)

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        if self.authorization is not None:
            return credentials.in_header(self.authorization)
        names = arrivals.certificate_names(self.arrival, self.every_header)
        expiry = arrivals.certificate_expiry(self.arrival)
        return (credentials.in_certificate(names, expiry) if names else None) or credentials.none_shown()


class SessionLookup(Protocol):
    """Where console sessions are kept."""

    async def session(self, cookie: str, credentials: Credentials) -> Credential | None:
        """The credential of the session that this cookie belongs to; None if it is over, or was never one."""
        ...


@dataclass(frozen=True, slots=True)
class SessionProof:
    """A session cookie of the console, or none."""

    cookie: str | None
    sessions: SessionLookup
    where: HttpProof

    @property
    def shows_credential(self) -> bool:
        return False  # Cookies are signed: a wrong one is a stale one, and no guess.

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
    """Where one-time login codes are kept."""

    async def redeem(self, code: str, credentials: Credentials) -> Credential | None:
        """The credential of the person that this code was made for; None if it is not known, too old or was used."""
        ...


@dataclass(frozen=True, slots=True)
class CodeProof:
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
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it was used already, or is too old")
        return found


@dataclass(frozen=True, slots=True)
class ProviderProof:
    """What a browser brought back from the OpenID provider. Examining it costs the provider a request."""

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


@dataclass(frozen=True, slots=True)
class LocalProof:
    """A user of this machine, named by the kernel (a Unix socket), or by having started the gateway.

    `proved`: it is the user that the gateway serves; where the kernel names no user, it showed a key that only this user can read.
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


@dataclass(frozen=True, slots=True)
class HopProof:
    """A request that another gateway on the same store has authorized, signed and forwarded."""

    caller: Caller
    digest: str = ""
    """Of the token that the caller showed there, if it is one of ours."""
    issued_at: int | None = None
    """When the caller's token was issued, if an issuer did."""
    shows_credential = True

    def address(self, arrivals: Arrivals) -> str:
        return "internal"

    def resolve(self, credentials: Credentials, arrivals: Arrivals) -> Credential:
        """Bound to the scope that it was authorized for. What was revoked since then counts here as well."""
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
