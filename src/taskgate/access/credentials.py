"""Credentials that the gateway accepts, and the identity that each proves.

The gateway's own tokens are found by digest, tokens of issuers in a verifier's cache, tokens of temporary scopes by
scope, and client certificates by name. Expiry and revocation are checked each time a credential is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.identity.access import AccessRefusal
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.identity.claims import TokenExpired, TokenRefused
from taskgate.core.identity.identity import ANONYMOUS_IDENTITY, NO_REQUIREMENT, Identity, principal_name
from taskgate.core.identity.roles import OWNER_ROLES
from taskgate.core.settings.identity import ScopeRequirement
from taskgate.ports.caller_credentials import Credential, CredentialRecords, CredentialVerifier
from taskgate.shown_fields import repr_without

NEVER: Final = float("inf")
TEMPORARY_PREFIX: Final = b"tgs_"
MAX_TEMPORARY: Final = 1_000
"""Maximum number of cached credentials."""

ScopeOfToken = Callable[[str], str | None]
"""Returns the temporary scope of the token with this digest."""


class Token(msgspec.Struct, frozen=True):
    """A configured token. Only its digest is stored."""

    id: str
    sha256: str
    roles: frozenset[str] = frozenset()
    scope: str | None = None
    may_call: bool = True
    tenant: str = ""
    expires: float = NEVER

    __repr__ = repr_without("sha256")

    @property
    def credential(self) -> Credential:
        name = principal_name(self.tenant, self.id)
        identity = Identity(
            principal=name, roles=self.roles, scope=self.scope, may_call=self.may_call, tenant=self.tenant
        )
        expiry = None if self.expires == NEVER else clock.Expiry(self.expires)
        return Credential(identity, expiry, digest=self.sha256)


class CredentialRefused(Exception):
    """A rejected or missing credential. The message may be shown to the caller."""

    def __init__(self, reason: AccessRefusal, why: str = "") -> None:
        super().__init__(why)
        self.reason = reason


class NotVerifiedYet(Exception):
    """The credential may be from an issuer and must be verified by `Credentials.verify`."""

    def __init__(self, credential: bytes, certificate: str) -> None:
        super().__init__()
        self.credential = credential
        self.certificate = certificate
        """The thumbprint of the certificate that was shown with it."""


def token_digest(token: str | bytes) -> str:
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).hexdigest()


def operator_identity(token: str) -> Token:
    """Return the operator's token as a `Token`."""
    return Token(OPERATOR, token_digest(token), OWNER_ROLES)


class Credentials:
    """All accepted credentials. `operator` is the token of the gateway's owner, which does not make other tokens mandatory.

    `anonymous` is the only scope that needs no identity. Without it and without credentials every scope is open, unless the
    gateway is `private` and serves only its owner and holders of credentials.
    """

    def __init__(
        self,
        tokens: tuple[Token, ...],
        operator: Token | None,
        anonymous: str | None,
        verifier: CredentialVerifier | None,
        requirements: Mapping[str, ScopeRequirement],
        *,
        scope_of_token: ScopeOfToken,
        records: CredentialRecords,
        certificates: Mapping[str, Identity],
        private: bool = False,
    ) -> None:
        known = (*tokens, operator) if operator is not None else tokens
        # Lookup by digest: its timing reveals nothing about a token, because a caller cannot choose a digest.
        self._known = {token.sha256: token.credential for token in known}
        self._digests = {token.credential.identity.principal: token.sha256 for token in known}
        self._verifier = verifier
        self._requirements = requirements
        self._scope_of_token = scope_of_token
        self._records = records
        self._certificates = {name: Credential(identity) for name, identity in certificates.items()}
        self._shown_certificates: dict[tuple[str, clock.Expiry], Credential] = {}
        """By caller and expiry of the certificate, which is one object per connection."""
        self._temporary: dict[str, Credential] = {}
        known_by_us = bool(tokens or certificates)
        self.requires_identity = known_by_us or verifier is not None or anonymous is not None or private
        self._without_credential: Credential | None = Credential(ANONYMOUS_IDENTITY)
        if self.requires_identity:
            self._without_credential = Credential(Identity(scope=anonymous)) if anonymous is not None else None

    @property
    def issuers(self) -> tuple[str, ...]:
        """The issuers of tokens for this gateway; empty if only its own tokens are accepted."""
        return self._verifier.issuers if self._verifier is not None else ()

    @property
    def required_claims(self) -> frozenset[str]:
        """The claim paths that scopes require."""
        return frozenset(path for requirement in self._requirements.values() for path in requirement.claims)

    def requirement(self, scope: str) -> ScopeRequirement:
        return self._requirements.get(scope, NO_REQUIREMENT)

    def in_header(self, authorization: bytes, certificate: str = "") -> Credential:
        """Return the credential in an `Authorization` header. `certificate`: the thumbprint of the one shown with it.

        Raises CredentialRefused and NotVerifiedYet.
        """
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            credential = credential.strip()
            if credential.startswith(TEMPORARY_PREFIX):
                return self._of_temporary_scope(credential)
            digest = hashlib.sha256(credential).hexdigest()
            known = self._known.get(digest)
            if known is not None:
                return self._checked(known)
            if self._verifier is not None:
                return self._issued(self._verifier, credential, certificate)
        if self.requires_identity:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it is unknown")
        return self.none_shown()

    def in_certificate(self, names: tuple[str, ...], expiry: clock.Expiry | None) -> Credential | None:
        """Return the credential of a certificate; None if its names match none or several callers. Raises CredentialRefused."""
        known = [self._certificates[name] for name in names if name in self._certificates]
        if len({one.identity.principal for one in known}) != 1:
            return None
        return known[0] if expiry is None else self._in_time(known[0], expiry)

    def _in_time(self, known: Credential, expiry: clock.Expiry) -> Credential:
        if expiry.passed:
            raise CredentialRefused(AccessRefusal.EXPIRED, "the certificate has expired")
        key = (known.identity.principal, expiry)
        shown = self._shown_certificates.get(key)
        if shown is None:
            if len(self._shown_certificates) >= MAX_TEMPORARY:
                self._shown_certificates.clear()
            shown = self._shown_certificates[key] = Credential(known.identity, expiry)
        return shown

    def none_shown(self) -> Credential:
        """Return the credential of anonymous callers. Raises CredentialRefused if they are not served."""
        if self._without_credential is None:
            raise CredentialRefused(AccessRefusal.NO_CREDENTIAL)
        return self._without_credential

    def of_principal(self, principal: str) -> Credential | None:
        """Return the configured token with this name, for a login made with it, or None. Raises CredentialRefused."""
        digest = self._digests.get(principal)
        return None if digest is None else self._checked(self._known[digest])

    async def verify(self, unverified: NotVerifiedYet, peer: str) -> Credential:
        """Verify a new credential of this address with its issuer. Raises CredentialRefused and IssuerUnavailable."""
        if self._verifier is None:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it is unknown")
        try:
            verified = await self._verifier.verify(unverified.credential, peer)
        except TokenExpired as expired:
            raise CredentialRefused(AccessRefusal.EXPIRED, str(expired)) from None
        except TokenRefused as refused:
            raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, str(refused)) from None
        _refuse_without_certificate(verified, unverified.certificate)
        self.refuse_recalled(verified.identity)
        self._records.note(verified.identity)
        return verified

    def refuse_recalled(self, identity: Identity) -> None:
        """Raise CredentialRefused if the subject was revoked after the credential was issued."""
        if self._records.is_recalled(identity):
            raise CredentialRefused(AccessRefusal.REVOKED, "it was revoked")

    def refuse_revoked(self, digest: str) -> None:
        """Raise CredentialRefused if the gateway's own token was revoked."""
        if self._records.is_revoked(digest):
            raise CredentialRefused(AccessRefusal.REVOKED, "it was revoked")

    def _checked(self, known: Credential) -> Credential:
        if self._records.is_revoked(known.digest):
            raise CredentialRefused(AccessRefusal.REVOKED, "it was revoked")
        if known.expiry is not None and known.expiry.passed:
            raise CredentialRefused(AccessRefusal.EXPIRED, "it has expired")
        return known

    def _issued(self, verifier: CredentialVerifier, credential: bytes, certificate: str) -> Credential:
        verified = verifier.remembered(credential)
        if verified is None:
            raise NotVerifiedYet(credential, certificate)
        _refuse_without_certificate(verified, certificate)
        self.refuse_recalled(verified.identity)
        return verified

    def _of_temporary_scope(self, credential: bytes) -> Credential:
        """Return the credential of a temporary scope, named after it. After its end it is rejected even on an open gateway."""
        digest = hashlib.sha256(credential).hexdigest()
        scope = self._scope_of_token(digest)
        if scope is None:
            self._temporary.pop(digest, None)
            raise CredentialRefused(AccessRefusal.REVOKED, "its temporary scope has ended or does not exist")
        known = self._temporary.get(digest)
        if known is None:
            if len(self._temporary) >= MAX_TEMPORARY:
                self._temporary.clear()
            known = self._temporary[digest] = Credential(Identity(scope, scope=scope))
        return known


def _refuse_without_certificate(verified: Credential, certificate: str) -> None:
    """Raise CredentialRefused if the token is bound to another certificate than the one that was shown, if any."""
    if verified.certificate and verified.certificate != certificate:
        raise CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it is bound to a certificate that was not shown")
