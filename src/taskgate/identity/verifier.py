"""Verifies bearer tokens of configured issuers and caches the results."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from taskgate import clock
from taskgate.core.identity.claims import TokenExpired, TokenProblem, TokenRefused, bound_certificate, identity_in
from taskgate.identity.documents import Documents
from taskgate.identity.fair_slots import FairSlots
from taskgate.identity.introspection import Introspection, introspect
from taskgate.identity.signed_tokens import Issuer, check_signature, looks_signed, parse_token
from taskgate.ports.caller_credentials import Credential

MAX_REMEMBERED: Final = 20_000
AT_ONCE: Final = 8


class Verifier:
    def __init__(self, issuers: Iterable[Issuer], introspection: Introspection | None, documents: Documents) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}
        self._introspection = introspection
        self._documents = documents
        self._remembered: OrderedDict[bytes, Credential] = OrderedDict()
        self._expired: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Credential]] = {}
        self._slots = FairSlots(AT_ONCE)

    @property
    def issuers(self) -> tuple[str, ...]:
        """The issuers whose tokens are accepted, for the metadata of the gateway."""
        introspected = () if self._introspection is None else (self._introspection.rules.issuer,)
        return tuple(dict.fromkeys((*self._issuers, *introspected)))

    def remembered(self, credential: bytes) -> Credential | None:
        """The cached result for a credential, while it is valid."""
        digest = hashlib.sha256(credential).digest()
        known = self._remembered.get(digest)
        if known is None:
            return None
        if _has_passed(known.expiry):
            self._forget_expired(digest)
            return None
        if _has_passed(known.fresh):
            del self._remembered[digest]
            return None
        return known

    def _forget_expired(self, digest: bytes) -> None:
        """Remember it as expired, even if the wall clock is set back."""
        del self._remembered[digest]
        self._expired[digest] = None
        if len(self._expired) > MAX_REMEMBERED:
            self._expired.popitem(last=False)

    async def verify(self, credential: bytes, peer: str = "") -> Credential:
        """`peer` sent the credential. Raises TokenRefused, and IssuerUnavailable where it cannot be verified now."""
        digest = hashlib.sha256(credential).digest()
        if digest in self._expired:
            raise TokenExpired(TokenProblem.EXPIRED)
        work = self._under_way.get(digest)
        if work is None:
            work = self._under_way[digest] = asyncio.create_task(self._verify(credential, digest, peer))
            work.add_done_callback(lambda done: self._ended(digest, done))
        return await asyncio.shield(work)

    async def close(self) -> None:
        for work in list(self._under_way.values()):
            work.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for issuer in self._issuers.values():
            await issuer.keys.close()

    def _ended(self, digest: bytes, work: asyncio.Task[Credential]) -> None:
        self._under_way.pop(digest, None)
        if not work.cancelled():
            work.exception()

    async def _verify(self, credential: bytes, digest: bytes, peer: str) -> Credential:
        async with self._slots.of(peer):
            verified = await self._verified(credential)
        self._remembered[digest] = verified
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return verified

    async def _verified(self, credential: bytes) -> Credential:
        if looks_signed(credential):
            token = parse_token(credential)
            issuer = self._issuers.get(token.issuer)
            if issuer is not None:
                # Refuse invalid claims before fetching keys.
                bound = bound_certificate(token.claims)
                identity_in(token.claims, issuer.rules, clock.wall())
                await check_signature(token, issuer)
                identity, expires = identity_in(token.claims, issuer.rules, clock.wall())
                return Credential(identity, clock.Expiry(expires), certificate=bound)
        if self._introspection is None:
            raise TokenRefused(TokenProblem.OTHER_ISSUER if looks_signed(credential) else TokenProblem.UNKNOWN)
        return await introspect(credential, self._introspection, self._documents)


def _has_passed(expiry: clock.Expiry | None) -> bool:
    return expiry is not None and expiry.passed
