"""OAuth discovery as MCP specifies it: which authorization server issues tokens for a server, and its endpoints.

Covers protected resource metadata (RFC 9728), authorization server metadata (RFC 8414) and OpenID Connect Discovery. The caller
supplies the function that fetches a document, with its own limits and trust; metadata about another resource or issuer is rejected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

import msgspec

from taskgate.mcp.oauth_challenge import Challenge

Fetch = Callable[[str], Awaitable[dict[str, Any] | None]]
"""Returns the JSON object at an address, or None if there is none."""
MAX_SCOPES: Final = 100
MAX_ADDRESS: Final = 2_048
"""Characters of an address, or of a scope. Reading a longer one takes quadratic time, because Python normalizes the host."""


class DiscoveryFailed(Exception):
    """Metadata that describes another resource or issuer, or lacks what a login needs."""


class AuthorizationServer(msgspec.Struct, frozen=True):
    """The metadata of an authorization server that a login needs."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    scopes: tuple[str, ...]
    auth_methods: tuple[str, ...]
    takes_metadata_urls: bool
    """Whether a client may identify itself by the address of a metadata document."""
    sends_issuer: bool
    """Whether its authorization responses contain the parameter `iss` (RFC 9207)."""


async def resource_metadata(fetch: Fetch, url: str, challenge: Challenge) -> dict[str, Any] | None:
    """The protected resource metadata of the server at `url`; None if it publishes none. Raises DiscoveryFailed."""
    for address in resource_addresses(url, challenge):
        found = await fetch(address)
        if found is not None:
            check_resource(url, found.get("resource"))
            return found
    return None


def resource_addresses(url: str, challenge: Challenge) -> list[str]:
    """Where the metadata may be: the address in the challenge, then the well-known ones."""
    well_known = f"{origin_of(url)}/.well-known/oauth-protected-resource"
    addresses = [well_known + urlsplit(url).path.rstrip("/"), well_known]
    if challenge.resource_metadata:
        addresses.insert(0, challenge.resource_metadata)
    return list(dict.fromkeys(addresses))


def check_resource(url: str, resource: Any) -> None:
    """Raises DiscoveryFailed for metadata of another resource: it must not decide where users log in (RFC 9728, section 3.3)."""
    if resource is None:
        return
    if len(str(resource)) > MAX_ADDRESS:
        raise DiscoveryFailed(f"the metadata of {url} names a resource with more than {MAX_ADDRESS} characters")
    expected, given = urlsplit(url), urlsplit(str(resource))
    same_origin = (expected.scheme, expected.netloc) == (given.scheme, given.netloc)
    inside = (expected.path.rstrip("/") + "/").startswith(given.path.rstrip("/") + "/")
    if not same_origin or not inside:
        raise DiscoveryFailed(f"the metadata of {url} describes another resource: {str(resource)[:200]!r}")


async def issuer_metadata(
    fetch: Fetch, issuer: str, *, openid_first: bool = False, ignore_trailing_slash: bool = False
) -> dict[str, Any] | None:
    """The metadata of an issuer; None if it publishes none. Raises DiscoveryFailed where it names another issuer."""
    for address in issuer_addresses(issuer, openid_first=openid_first):
        found = await fetch(address)
        if found is None:
            continue
        named, expected = found.get("issuer"), issuer
        if ignore_trailing_slash:
            named, expected = str(named).rstrip("/"), issuer.rstrip("/")
        if named != expected:
            raise DiscoveryFailed(f"{address} describes another issuer: {str(found.get('issuer'))[:200]!r}")
        return found
    return None


def issuer_addresses(issuer: str, *, openid_first: bool = False) -> list[str]:
    """The well-known addresses of an issuer, in the order of MCP; identity providers publish OpenID Connect metadata first."""
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    oauth = f"{origin}/.well-known/oauth-authorization-server{path}"
    openid = f"{origin}{path}/.well-known/openid-configuration"
    openid_inserted = f"{origin}/.well-known/openid-configuration{path}"
    addresses = [openid, oauth, openid_inserted] if openid_first else [oauth, openid_inserted, openid]
    return list(dict.fromkeys(addresses))


def authorization_server(issuer: str, metadata: Mapping[str, Any]) -> AuthorizationServer:
    """Raises DiscoveryFailed where endpoints or PKCE with S256 are missing."""
    for name in ("authorization_endpoint", "token_endpoint"):
        if not _is_address(metadata.get(name)):
            raise DiscoveryFailed(f"the metadata of {issuer} has no {name}")
    if "S256" not in strings(metadata.get("code_challenge_methods_supported")):
        raise DiscoveryFailed(f"{issuer} does not support PKCE with S256, which protects logins")
    registration = metadata.get("registration_endpoint")
    return AuthorizationServer(
        issuer=str(metadata.get("issuer") or issuer),
        authorization_endpoint=metadata["authorization_endpoint"],
        token_endpoint=metadata["token_endpoint"],
        registration_endpoint=registration if _is_address(registration) else None,
        scopes=strings(metadata.get("scopes_supported")),
        auth_methods=strings(metadata.get("token_endpoint_auth_methods_supported")),
        takes_metadata_urls=metadata.get("client_id_metadata_document_supported") is True,
        sends_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
    )


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def strings(value: Any) -> tuple[str, ...]:
    """The strings in a JSON list, without very long ones; empty for any other value."""
    return tuple(each for each in value if _is_address(each))[:MAX_SCOPES] if isinstance(value, list) else ()


def _is_address(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_ADDRESS
