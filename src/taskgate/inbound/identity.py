"""Who is at the transport: a bearer token names a principal.

Three kinds of credential are known: our own tokens (kept as digests), tokens that an issuer signed, and tokens that an issuer is
asked about. As soon as one of them is configured, a request without a credential is refused, except in the one scope that
`auth.anonymous` names. Where none is configured everybody is anonymous.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from taskgate import clock
from taskgate.core.governance.approval import Approver
from taskgate.core.identity import (
    NO_REQUIREMENT,
    NOBODY,
    OWNER_ROLES,
    Identity,
    Requirement,
    TokenRefused,
    principal_name,
)
from taskgate.ports.credentials import CredentialRecords, CredentialVerifier, IssuerUnavailable

OPERATOR = "operator"
NEVER = float("inf")

ScopeOfToken = Callable[[str], str | None]
"""The temporary scope that the token of this digest was made for."""


@dataclass(frozen=True, slots=True)
class Token:
    """A known token: who it stands for. Only its digest is kept."""

    id: str
    sha256: str
    roles: frozenset[str] = frozenset()
    scope: str | None = None
    may_call: bool = True
    tenant: str = ""
    expires: float = NEVER

    @property
    def identity(self) -> Identity:
        name = principal_name(self.tenant, self.id)
        return Identity(name, self.roles, self.scope, self.may_call, self.tenant)


TEMPORARY_PREFIX: Final = b"tgs_"


class WrongToken(Exception):
    """A credential was given and is not one of ours, or not good any more."""


class TokenNeeded(Exception):
    """No credential was given, and anonymous callers are not served here."""


class NotVerifiedYet(Exception):
    """The credential may be an issuer's: `verify` finds out, after which `identify` knows it."""

    def __init__(self, credential: bytes) -> None:
        super().__init__()
        self.credential = credential


def token_digest(token: str | bytes) -> str:
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).hexdigest()


def operator_identity(token: str) -> Token:
    """The operator's token as the transport keeps it."""
    return Token(OPERATOR, token_digest(token), OWNER_ROLES)


class CallerIdentifier:
    """`operator` is the token of whoever owns the gateway; knowing it does not make other tokens necessary.

    `anonymous` is the only scope that needs no identity; without it and without credentials every scope is open, unless the
    gateway is `private`: then only its owner and the holders of credentials may come.
    """

    def __init__(
        self,
        tokens: tuple[Token, ...],
        operator: Token | None,
        anonymous: str | None,
        verifier: CredentialVerifier | None,
        requirements: Mapping[str, Requirement],
        *,
        scope_of_token: ScopeOfToken,
        records: CredentialRecords,
        certificates: Mapping[str, Identity],
        private: bool = False,
    ) -> None:
        known = (*tokens, operator) if operator is not None else tokens
        # Found by digest: how long that takes says nothing about a token, because nobody can aim at a digest.
        self._known = {token.sha256: (token.identity, token.expires) for token in known}
        self._verifier = verifier
        self._requirements = requirements
        self._scope_of_token = scope_of_token
        self._records = records
        self._certificates = certificates
        known_by_us = bool(tokens or certificates)
        self.requires_identity = known_by_us or verifier is not None or anonymous is not None or private
        if not self.requires_identity:
            self._nobody: Identity | None = NOBODY
        else:
            self._nobody = Identity(scope=anonymous) if anonymous is not None else None

    @property
    def issuers(self) -> tuple[str, ...]:
        """Where callers can get a credential; empty if only our own tokens count."""
        return self._verifier.issuers if self._verifier is not None else ()

    def requirement(self, scope: str) -> Requirement:
        return self._requirements.get(scope, NO_REQUIREMENT)

    def identify(self, authorization: bytes | None, certificate: tuple[str, ...] = ()) -> Identity:
        """`certificate`: the names that a client proved by one. Raises WrongToken, TokenNeeded and NotVerifiedYet."""
        if authorization is None:
            by_certificate = self._by_certificate(certificate) if certificate else None
            return by_certificate or self._without_token()
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            credential = credential.strip()
            if credential.startswith(TEMPORARY_PREFIX):
                return self._in_temporary_scope(credential)
            digest = hashlib.sha256(credential).hexdigest()
            known = self._known.get(digest)
            if known is not None and self._is_good(digest, known[1]):
                return known[0]
            if known is None and self._verifier is not None:
                identity = self._verifier.remembered(credential)
                if identity is None:
                    raise NotVerifiedYet(credential)
                if self._records.is_recalled(identity):
                    raise WrongToken
                return identity
        if self.requires_identity:
            raise WrongToken
        return NOBODY

    async def verify(self, credential: bytes) -> None:
        """Find out about a credential that is not known yet. Raises TokenRefused and IssuerUnavailable."""
        if self._verifier is None:
            raise TokenRefused("it is not known")
        self._records.note(await self._verifier.verify(credential))

    def _is_good(self, digest: str, expires: float) -> bool:
        return (expires == NEVER or clock.wall() < expires) and not self._records.is_revoked(digest)

    def _by_certificate(self, names: tuple[str, ...]) -> Identity | None:
        """Names of two callers in one certificate prove neither."""
        known = {name: self._certificates[name] for name in names if name in self._certificates}
        one = len({identity.principal for identity in known.values()}) == 1
        return next(iter(known.values())) if one else None

    def _in_temporary_scope(self, credential: bytes) -> Identity:
        """Its bearer is known by the name of the scope. One whose scope has ended is nobody, also where nobody needs a token."""
        scope = self._scope_of_token(hashlib.sha256(credential).hexdigest())
        if scope is None:
            raise WrongToken
        return Identity(scope, scope=scope)

    def _without_token(self) -> Identity:
        if self._nobody is None:
            raise TokenNeeded
        return self._nobody


async def holder_at(caller_identifier: CallerIdentifier, authorization: bytes) -> Approver | None:
    """The person behind a bearer token, whatever they may do. Nobody behind a token that is not known."""
    try:
        try:
            identity = caller_identifier.identify(authorization)
        except NotVerifiedYet as unverified:
            await caller_identifier.verify(unverified.credential)
            identity = caller_identifier.identify(authorization)
    except (WrongToken, TokenNeeded, TokenRefused, NotVerifiedYet, IssuerUnavailable):
        return None
    if identity.anonymous:
        return None
    return Approver(identity.principal, identity.roles, identity.may_call)
