"""An issuer's public keys: fetched, cached, and refreshed before they are outdated.

One fetch runs at a time. A call waits for a fetch only when no usable key is cached. An unknown key id triggers a fetch at most
every 30 seconds, so invented key ids cost nothing. While the issuer is unavailable, cached keys stay valid for at most a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskgate import clock
from taskgate.identity.discovery import issuer_metadata
from taskgate.identity.documents import Documents
from taskgate.ports.caller_credentials import IssuerUnavailable
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from typing import TypeAlias

    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey: TypeAlias = RSAKey | ECKey | OKPKey


REFRESH_AFTER_S: Final = 600.0
REFETCH_AFTER_S: Final = 30.0
OLDEST_S: Final = 86_400.0
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class SigningKey(msgspec.Struct, frozen=True):
    id: str | None
    type: str
    algorithm: str | None
    """The only algorithm that it may be used with, if the issuer restricts it."""
    key: PublicKey


class SigningKeys:
    """The keys of one issuer. `jwks_url` is None where the issuer's metadata contains it."""

    def __init__(self, issuer: str, jwks_url: str | None, documents: Documents) -> None:
        self.issuer = issuer
        self._jwks_url = jwks_url
        self._documents = documents
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._missed_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def candidates(self, key_id: str | None, algorithm: str) -> tuple[PublicKey, ...]:
        """The keys that may have signed, usually one. Raises IssuerUnavailable where no keys are available."""
        now = clock.monotonic()
        if self._fetched_at is not None and now - self._fetched_at > OLDEST_S:
            self._keys, self._fetched_at = (), None
        if self._fetched_at is None:
            await self._fetch()
        elif now - self._fetched_at > REFRESH_AFTER_S and self._may_fetch(now):
            self._begin()
        found = self._matching(key_id, algorithm)
        if not found and (self._missed_at is None or now - self._missed_at >= REFETCH_AFTER_S):
            # Limited separately from other fetches: an issuer may start to use a key right after a fetch.
            self._missed_at = now
            await self._fetch()
            found = self._matching(key_id, algorithm)
        return found

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _matching(self, key_id: str | None, algorithm: str) -> tuple[PublicKey, ...]:
        fits = [
            known
            for known in self._keys
            if known.type == KEY_TYPES[algorithm[:2]] and known.algorithm in (None, algorithm)
        ]
        if key_id is not None:
            return tuple(known.key for known in fits if known.id == key_id)
        # Without an id the key is unambiguous only if the issuer has one.
        return (fits[0].key,) if len(fits) == 1 else ()

    def _may_fetch(self, now: float) -> bool:
        return self._asked_at is None or now - self._asked_at >= REFETCH_AFTER_S

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._asked_at = clock.monotonic()
            self._fetching = asyncio.create_task(self._refresh())
        return self._fetching

    async def _fetch(self) -> None:
        """Wait for a running or new fetch. Raises IssuerUnavailable if there is no key afterwards."""
        if self._fetching is not None and not self._fetching.done():
            await asyncio.shield(self._fetching)
        elif self._fetched_at is None and not self._may_fetch(clock.monotonic()):
            raise IssuerUnavailable(f"the keys of {self.issuer} could not be fetched recently; retrying soon")
        else:
            await asyncio.shield(self._begin())
        if self._fetched_at is None:
            raise IssuerUnavailable(f"the keys of {self.issuer} cannot be fetched")

    async def _refresh(self) -> None:
        try:
            url = self._jwks_url or await self._discovered()
            # Parsing a key takes half a millisecond, and an issuer may have a hundred.
            self._keys = await asyncio.to_thread(usable_keys, await self._documents.get(url, self.issuer))
            self._fetched_at = clock.monotonic()
        except IssuerUnavailable as fault:
            log.warning("keys of an issuer not fetched", issuer=self.issuer, why=str(fault))

    async def _discovered(self) -> str:
        """The address of the keys, from the issuer's metadata (RFC 8414, OpenID Connect Discovery)."""
        metadata = await issuer_metadata(self.issuer, self._documents)
        url = metadata.get("jwks_uri")
        if not isinstance(url, str):
            raise IssuerUnavailable(f"{self.issuer} has no jwks_uri in its metadata")
        return url


def usable_keys(document: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """The keys that may verify a signature. Symmetric, private, weak and invalid keys are ignored."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise IssuerUnavailable("the key set has no keys")
    found = (_usable(each) for each in listed[:MAX_KEYS] if isinstance(each, Mapping))
    return tuple(each for each in found if each is not None)


def _usable(jwk: Mapping[str, Any]) -> SigningKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kind = jwk.get("kty")
    kinds: dict[str, type[PublicKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    operations = jwk.get("key_ops")
    if not isinstance(kind, str) or kind not in kinds or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    if isinstance(operations, list) and "verify" not in operations:
        return None
    try:
        key = kinds[kind].import_key(dict(jwk))
        if isinstance(key, RSAKey) and key.public_key.key_size < MIN_RSA_BITS:
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    key_id, algorithm = jwk.get("kid"), jwk.get("alg")
    return SigningKey(
        key_id if isinstance(key_id, str) else None,
        kind,
        algorithm if isinstance(algorithm, str) else None,
        key,
    )
