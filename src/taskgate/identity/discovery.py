"""What issuers and servers say about themselves: who gives out tokens for a server, and an issuer's public keys."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from taskgate import clock
from taskgate.identity.documents import Documents
from taskgate.ports.credentials import IssuerUnavailable
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from typing import TypeAlias

    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey: TypeAlias = RSAKey | ECKey | OKPKey

# An issuer's public keys: found, fetched, kept, and refreshed before they are old.
#
# One fetch at a time. A call waits for a fetch only when no usable key is at hand. A key that is not known makes us
# look again, but at most every 30 seconds, so that invented key ids cost nothing. While the issuer is down the keys
# that are known go on working, for a day at most.

REFRESH_AFTER_S: Final = 600.0
LOOK_AGAIN_AFTER_S: Final = 30.0
OLDEST_S: Final = 86_400.0
MAX_KEYS: Final = 100
LEAST_RSA_BITS: Final = 2048
KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


@dataclass(frozen=True, slots=True)
class SigningKey:
    id: str | None
    type: str
    algorithm: str | None
    """The only algorithm that it may be used with, if the issuer says so."""
    key: PublicKey


class SigningKeys:
    """The keys of one issuer. `jwks_url` is None where the issuer's metadata tell it."""

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
        """The keys that may have signed: usually one. Raises IssuerUnavailable where no key can be had at all."""
        now = clock.monotonic()
        if self._fetched_at is not None and now - self._fetched_at > OLDEST_S:
            self._keys, self._fetched_at = (), None
        if self._fetched_at is None:
            await self._fetch()
        elif now - self._fetched_at > REFRESH_AFTER_S and self._may_ask(now):
            self._begin()
        found = self._matching(key_id, algorithm)
        if not found and (self._missed_at is None or now - self._missed_at >= LOOK_AGAIN_AFTER_S):
            # Counted apart from other fetches: an issuer may begin to use a key just after we looked at its keys.
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
        # Without an id only an issuer with one key says which one is meant.
        return (fits[0].key,) if len(fits) == 1 else ()

    def _may_ask(self, now: float) -> bool:
        return self._asked_at is None or now - self._asked_at >= LOOK_AGAIN_AFTER_S

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._asked_at = clock.monotonic()
            self._fetching = asyncio.create_task(self._refresh())
        return self._fetching

    async def _fetch(self) -> None:
        """Wait for a fetch, an own one or one under way. Raises IssuerUnavailable if there is no key afterwards."""
        if self._fetching is not None and not self._fetching.done():
            await asyncio.shield(self._fetching)
        elif self._fetched_at is None and not self._may_ask(clock.monotonic()):
            raise IssuerUnavailable(f"the keys of {self.issuer} could not be fetched a moment ago")
        else:
            await asyncio.shield(self._begin())
        if self._fetched_at is None:
            raise IssuerUnavailable(f"the keys of {self.issuer} cannot be fetched")

    async def _refresh(self) -> None:
        try:
            url = self._jwks_url or await self._discovered()
            # Reading a key takes half a millisecond, and an issuer may have a hundred.
            self._keys = await asyncio.to_thread(usable_keys, await self._documents.get(url, self.issuer))
            self._fetched_at = clock.monotonic()
        except IssuerUnavailable as fault:
            log.warning("the keys of an issuer were not fetched", issuer=self.issuer, why=str(fault))

    async def _discovered(self) -> str:
        """The address of the keys, out of the issuer's own metadata (RFC 8414, OpenID Connect Discovery)."""
        metadata = await issuer_metadata(self.issuer, self._documents)
        url = metadata.get("jwks_uri")
        if not isinstance(url, str):
            raise IssuerUnavailable(f"{self.issuer} names no jwks_uri")
        return url


async def issuer_metadata(issuer: str, documents: Documents) -> dict[str, Any]:
    """What an issuer says about itself. One that calls itself something else is not believed. Raises IssuerUnavailable."""
    scheme, _, rest = issuer.partition("://")
    host, slash, path = rest.partition("/")
    path = (slash + path).rstrip("/")
    origin = f"{scheme}://{host}"
    fault: IssuerUnavailable | None = None
    for address in dict.fromkeys(
        (
            f"{origin}{path}/.well-known/openid-configuration",
            f"{origin}/.well-known/oauth-authorization-server{path}",
        )
    ):
        try:
            found = await documents.get(address, issuer)
        except IssuerUnavailable as problem:
            fault = fault or problem
            continue
        if found.get("issuer") != issuer:
            raise IssuerUnavailable(f"{address} describes another issuer")
        return found
    raise fault or IssuerUnavailable(f"{issuer} does not describe itself")


def usable_keys(document: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """The keys that may verify a signature. Symmetric, private, weak and broken ones are passed over."""
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
        if isinstance(key, RSAKey) and key.public_key.key_size < LEAST_RSA_BITS:
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


_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_MOST_SCOPES: Final = 100


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parts of a `WWW-Authenticate` that matter here."""

    resource_metadata: str | None = None
    scope: str | None = None
    error: str | None = None

    @property
    def wants_more(self) -> bool:
        return self.error == "insufficient_scope"


def challenge_in(header: str) -> Challenge:
    scheme, _, rest = header[:4096].partition(" ")
    if scheme.lower() != "bearer":
        return Challenge()
    found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
    return Challenge(found.get("resource_metadata"), found.get("scope"), found.get("error"))


@dataclass(frozen=True, slots=True)
class Protected:
    """A server as a resource: its identifier, who issues tokens for it, and which scopes there are."""

    resource: str
    issuer: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """An authorization server, as far as a login needs to know."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    scopes: tuple[str, ...]
    auth_methods: tuple[str, ...]
    takes_metadata_addresses: bool
    sends_issuer: bool


async def protected_resource(
    url: str, issuer: str | None, documents: Documents, challenge: Challenge | None = None
) -> Protected:
    """`issuer`: given by the operator, whose word counts more than the server's. Raises IssuerUnavailable."""
    described = await _described(url, documents, challenge or Challenge())
    if described is None:
        if issuer is not None:
            return Protected(url, issuer)
        # A server of 2025-03-26 says nothing about itself; its own origin is then the issuer.
        await issuer_metadata(origin_of(url), documents)
        return Protected(url, origin_of(url))
    resource = str(described.get("resource") or url)
    listed = described.get("authorization_servers")
    named = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if issuer is None and not named:
        raise IssuerUnavailable(f"{url} does not say who issues tokens for it; name the issuer")
    return Protected(resource, issuer or named[0], _words(described.get("scopes_supported")))


async def _described(url: str, documents: Documents, challenge: Challenge) -> dict[str, Any] | None:
    well_known = f"{origin_of(url)}/.well-known/oauth-protected-resource"
    addresses = [well_known + urlsplit(url).path.rstrip("/"), well_known]
    if challenge.resource_metadata is not None:
        addresses.insert(0, challenge.resource_metadata)
    for address in dict.fromkeys(addresses):
        try:
            document = await documents.get(address, url)
        except IssuerUnavailable:
            continue
        _check_resource(url, document.get("resource"))
        return document
    return None


def _check_resource(url: str, resource: Any) -> None:
    """A description of another resource must not decide where people log in (RFC 9728, 3.3)."""
    if resource is None:
        return
    wanted, given = urlsplit(url), urlsplit(str(resource))
    same_origin = (wanted.scheme, wanted.netloc) == (given.scheme, given.netloc)
    if not same_origin or not (wanted.path.rstrip("/") + "/").startswith(given.path.rstrip("/") + "/"):
        raise IssuerUnavailable(f"{url} describes itself as another resource")


async def authority_of(issuer: str, documents: Documents) -> Authority:
    """Raises IssuerUnavailable."""
    metadata = await issuer_metadata(issuer, documents)
    for name in ("authorization_endpoint", "token_endpoint"):
        if not isinstance(metadata.get(name), str):
            raise IssuerUnavailable(f"{issuer} names no {name}")
    if "S256" not in _words(metadata.get("code_challenge_methods_supported")):
        raise IssuerUnavailable(f"{issuer} does not protect logins (no PKCE with S256)")
    registration = metadata.get("registration_endpoint")
    return Authority(
        issuer,
        metadata["authorization_endpoint"],
        metadata["token_endpoint"],
        registration if isinstance(registration, str) else None,
        _words(metadata.get("scopes_supported")),
        _words(metadata.get("token_endpoint_auth_methods_supported")),
        metadata.get("client_id_metadata_document_supported") is True,
        metadata.get("authorization_response_iss_parameter_supported") is True,
    )


async def token_endpoint(issuer: str, documents: Documents) -> str:
    """Raises IssuerUnavailable."""
    found = (await issuer_metadata(issuer, documents)).get("token_endpoint")
    if not isinstance(found, str):
        raise IssuerUnavailable(f"{issuer} names no token_endpoint")
    return found


def joined_scopes(*each: str | None) -> str | None:
    """All scopes that any of the texts names, each once."""
    words = [word for text in each if text for word in text.split()]
    return " ".join(dict.fromkeys(words[:_MOST_SCOPES])) or None


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str))[:_MOST_SCOPES] if isinstance(value, list) else ()
