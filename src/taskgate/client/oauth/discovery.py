"""Find the authorization server of an MCP server from the metadata of both.

Follows the order of well-known addresses that MCP specifies (2025-11-25 and 2026-07-28) and rejects metadata about another
resource or issuer. Servers of 2025-03-26 publish no metadata; their own origin is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from taskgate.client.errors import LoginFailed
from taskgate.client.oauth.challenge import Challenge
from taskgate.client.oauth.fetcher import Fetcher


@dataclass(frozen=True, slots=True)
class Authority:
    """An authorization server, and the resource that tokens are requested for."""

    issuer: str
    resource: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    resource_scopes: tuple[str, ...] | None
    own_scopes: tuple[str, ...]
    auth_methods: tuple[str, ...]
    takes_metadata_urls: bool
    sends_issuer: bool


async def discover_authority(fetcher: Fetcher, url: str, challenge: Challenge) -> Authority:
    """Return the authorization server for the MCP server at `url`. Raises LoginFailed."""
    described = await _describe_resource(fetcher, url, challenge)
    if described is None:
        origin = _origin(url)
        return _authority(origin, url, {}, await _describe_issuer(fetcher, origin) or _guess(origin))
    issuers = described.get("authorization_servers")
    issuer = issuers[0] if isinstance(issuers, list) and issuers and isinstance(issuers[0], str) else _origin(url)
    metadata = await _describe_issuer(fetcher, issuer)
    if metadata is None:
        raise LoginFailed(f"the authorization server {issuer} publishes no metadata")
    return _authority(issuer, str(described.get("resource") or url), described, metadata)


async def _describe_resource(fetcher: Fetcher, url: str, challenge: Challenge) -> dict[str, Any] | None:
    path = urlsplit(url).path.rstrip("/")
    well_known = f"{_origin(url)}/.well-known/oauth-protected-resource"
    addresses = [challenge.resource_metadata] if challenge.resource_metadata else [well_known + path, well_known]
    for address in dict.fromkeys(addresses):
        described = await fetcher.get_json(address)
        if described is not None:
            _check_resource(url, described.get("resource"))
            return described
    return None


def _check_resource(url: str, resource: Any) -> None:
    """Reject metadata of another resource, which could redirect the login (RFC 9728, section 3.3)."""
    if resource is None:
        return
    requested, given = urlsplit(url), urlsplit(str(resource))
    same_origin = (requested.scheme, requested.netloc) == (given.scheme, given.netloc)
    inside = (requested.path.rstrip("/") + "/").startswith(given.path.rstrip("/") + "/")
    if not same_origin or not inside:
        raise LoginFailed(f"the resource metadata is for {resource!r}, not for {url!r}")


async def _describe_issuer(fetcher: Fetcher, issuer: str) -> dict[str, Any] | None:
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    addresses = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    for address in dict.fromkeys(addresses):
        metadata = await fetcher.get_json(address)
        if metadata is None:
            continue
        if str(metadata.get("issuer")).rstrip("/") != issuer.rstrip("/"):
            raise LoginFailed(
                f"the authorization server metadata is for {metadata.get('issuer')!r}, not for {issuer!r}"
            )
        return metadata
    return None


def _authority(issuer: str, resource: str, described: dict[str, Any], metadata: dict[str, Any]) -> Authority:
    for name in ("authorization_endpoint", "token_endpoint"):
        if not isinstance(metadata.get(name), str):
            raise LoginFailed(f"the authorization server metadata has no {name}")
    methods = metadata.get("code_challenge_methods_supported")
    if not isinstance(methods, list) or "S256" not in methods:
        raise LoginFailed("the authorization server does not support PKCE with S256")
    registration = metadata.get("registration_endpoint")
    scopes = described.get("scopes_supported")
    return Authority(
        str(metadata.get("issuer") or issuer),
        resource,
        metadata["authorization_endpoint"],
        metadata["token_endpoint"],
        registration if isinstance(registration, str) else None,
        _strings(scopes) if isinstance(scopes, list) else None,
        _strings(metadata.get("scopes_supported")),
        _strings(metadata.get("token_endpoint_auth_methods_supported")),
        metadata.get("client_id_metadata_document_supported") is True,
        metadata.get("authorization_response_iss_parameter_supported") is True,
    )


def _guess(origin: str) -> dict[str, Any]:
    """Return the default endpoints of MCP 2025-03-26 for servers without metadata."""
    return {
        "issuer": origin,
        "authorization_endpoint": f"{origin}/authorize",
        "token_endpoint": f"{origin}/token",
        "registration_endpoint": f"{origin}/register",
        "code_challenge_methods_supported": ["S256"],
    }


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
