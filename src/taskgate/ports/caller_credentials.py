"""Credentials of callers and people: verification, and login with an identity provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.identity import Identity
from taskgate.shown_fields import repr_without


class IssuerUnavailable(Exception):
    """A credential cannot be verified now. The message is for the operator's log."""


class IssuerFailed(IssuerUnavailable):
    """The issuer answered the request with an error, which what the caller sent may have caused."""


class LoginRefused(Exception):
    """A login with an identity provider failed. The message may be shown."""


class PendingLogin(msgspec.Struct, array_like=True, frozen=True):
    """A login in progress, stored in the browser: what the provider's reply must match, and the page to return to."""

    state: str
    nonce: str
    verifier: str
    back: str
    fresh: bool
    at: int

    __repr__ = repr_without("verifier")


class PeopleLogin(Protocol):
    """Logs people in with an identity provider."""

    async def begin(self, redirect_uri: str, back: str, *, fresh: bool) -> tuple[str, PendingLogin]:
        """Return the URL for the browser, and the state that it must return with. Raises IssuerUnavailable."""

    async def finish(self, pending: PendingLogin, answer: Mapping[str, str], redirect_uri: str) -> Identity:
        """Return the person who logged in. Raises LoginRefused and IssuerUnavailable."""


class CredentialRecords(Protocol):
    """Stored facts about credentials that are not in the configuration."""

    def is_revoked(self, digest: str) -> bool:
        """Return whether the configured token with this digest was revoked."""

    def is_recalled(self, identity: Identity) -> bool:
        """Return whether credentials of this subject with this time of issue are revoked."""

    def note(self, identity: Identity) -> None:
        """Record the subject of a verified credential with its current roles."""


class Credential(msgspec.Struct, frozen=True, eq=False):
    """A verified credential."""

    identity: Identity
    expiry: clock.Expiry | None = None
    """When it expires; None if it does not."""
    fresh: clock.Expiry | None = None
    """Until when the verification is valid; then the issuer must verify it again. None: until `expiry`."""
    person: Approver | None = None
    """The person of a console session, with the time of the login."""
    digest: str = ""
    """The digest of a configured token, by which it is revoked."""
    certificate: str = ""
    """The thumbprint of the client certificate without which the token is not accepted; empty if it is not bound to one."""


class CredentialVerifier(Protocol):
    @property
    def issuers(self) -> tuple[str, ...]:
        """The issuers of credentials for this gateway."""

    def remembered(self, credential: bytes) -> Credential | None:
        """Return a credential that was verified before, while that verification is valid."""

    async def verify(self, credential: bytes, peer: str) -> Credential:
        """Verify a credential that came from this address. Raises TokenRefused and IssuerUnavailable."""

    async def close(self) -> None: ...
