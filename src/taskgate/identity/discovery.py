"""What issuers and servers say about themselves: who gives out tokens for a server, and an issuer's public keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from taskgate.identity.documents import Documents
from taskgate.ports.credentials import IssuerUnavailable

if TYPE_CHECKING:
    from typing import TypeAlias

    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey: TypeAlias = RSAKey | ECKey | OKPKey


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
