"""Find the authorization server of an MCP server for a login with the client library.

The documents and checks are those of `mcp/oauth_discovery.py`. Servers of 2025-03-26 publish no metadata: their own origin is
then the authorization server, with fixed endpoints.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.client.errors import LoginFailed
from taskgate.client.oauth.fetcher import Fetcher
from taskgate.mcp.oauth_challenge import Challenge
from taskgate.mcp.oauth_discovery import (
    DiscoveryFailed,
    authorization_server,
    issuer_metadata,
    origin_of,
    resource_metadata,
    strings,
)


class Authority(msgspec.Struct, frozen=True):
    """An authorization server, and the resource that its tokens are for."""

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
    """The authorization server of the MCP server at `url`. Raises LoginFailed."""
    try:
        return await _discovered(fetcher, url, challenge)
    except DiscoveryFailed as problem:
        raise LoginFailed(str(problem)) from problem


async def _discovered(fetcher: Fetcher, url: str, challenge: Challenge) -> Authority:
    described = await resource_metadata(fetcher.get_json, url, challenge)
    issuers = strings(described.get("authorization_servers")) if described is not None else ()
    issuer = issuers[0] if issuers else origin_of(url)
    metadata = await issuer_metadata(fetcher.get_json, issuer, ignore_trailing_slash=True)
    if metadata is None:
        if described is not None:
            raise LoginFailed(f"the authorization server {issuer} publishes no metadata")
        metadata = _default_endpoints(issuer)
    server = authorization_server(issuer, metadata)
    scopes = described.get("scopes_supported") if described is not None else None
    return Authority(
        issuer=server.issuer,
        resource=str((described or {}).get("resource") or url),
        authorization_endpoint=server.authorization_endpoint,
        token_endpoint=server.token_endpoint,
        registration_endpoint=server.registration_endpoint,
        resource_scopes=strings(scopes) if isinstance(scopes, list) else None,
        own_scopes=server.scopes,
        auth_methods=server.auth_methods,
        takes_metadata_urls=server.takes_metadata_urls,
        sends_issuer=server.sends_issuer,
    )


def _default_endpoints(origin: str) -> dict[str, Any]:
    """The fixed endpoints of 2025-03-26, for servers without metadata."""
    return {
        "issuer": origin,
        "authorization_endpoint": f"{origin}/authorize",
        "token_endpoint": f"{origin}/token",
        "registration_endpoint": f"{origin}/register",
        "code_challenge_methods_supported": ["S256"],
    }
