"""Verifying credentials that others issued: what the entrance needs of whoever does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from taskgate.core.identity.identity import Identity


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

    async def finish(
        self, pending: PendingLogin, answer: Mapping[str, str], redirect_uri: str
    ) -> tuple[Identity, int | None]:
        """Who logged in, and when they proved it. Raises LoginRefused and IssuerUnavailable."""


class CredentialRecords(Protocol):
    """What is kept about credentials beyond the configuration."""

    def is_revoked(self, digest: str) -> bool:
        """Whether the token of ours with this digest was revoked before its time."""

    def is_recalled(self, identity: Identity) -> bool:
        """Whether credentials of this subject that were issued when this one was are refused."""

    def note(self, identity: Identity) -> None:
        """A credential of an issuer was verified: this is who its subject is now."""


class CredentialVerifier(Protocol):
    @property
    def issuers(self) -> tuple[str, ...]:
        """Who gives out credentials for this gateway."""

    def remembered(self, credential: bytes) -> Identity | None:
        """The identity behind a credential that was verified before and is still good."""

    async def verify(self, credential: bytes) -> Identity:
        """Raises TokenRefused, and IssuerUnavailable."""

    async def close(self) -> None: ...
