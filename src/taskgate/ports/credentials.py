"""Verifying credentials that others issued: what the entrance needs of whoever does it."""

from __future__ import annotations

from typing import Protocol

from taskgate.core.identity.identity import Identity


class IssuerUnavailable(Exception):
    """Whether a credential is good cannot be found out now. The message says why, for the operator's log."""


class CredentialVerifier(Protocol):
    @property
    def issuers(self) -> tuple[str, ...]:
        """Who gives out credentials for this gateway."""

    def remembered(self, credential: bytes) -> Identity | None:
        """The identity behind a credential that was verified before and is still good."""

    async def verify(self, credential: bytes) -> Identity:
        """Raises TokenRefused, and IssuerUnavailable."""

    async def close(self) -> None: ...
