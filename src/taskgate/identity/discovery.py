"""Discovers, for the gateway, which issuer issues tokens for a server, and the endpoints of an issuer.

The documents and checks are those of `mcp/oauth_discovery.py`; here they are fetched under the gateway's rules for addresses
(`documents.py`), and failures become IssuerUnavailable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.identity.documents import Documents
from taskgate.mcp import oauth_discovery
from taskgate.mcp.oauth_challenge import Challenge
from taskgate.mcp.oauth_discovery import (
    MAX_SCOPES,
    AuthorizationServer,
    DiscoveryFailed,
    authorization_server,
    origin_of,
    strings,
)
from taskgate.ports.caller_credentials import IssuerUnavailable


class ProtectedResource(msgspec.Struct, frozen=True):
    """A server as a resource: its identifier, the issuer of its tokens, and its scopes."""

    resource: str
    issuer: str
    scopes: tuple[str, ...] = ()


async def issuer_metadata(issuer: str, documents: Documents) -> dict[str, Any]:
    """The metadata of an issuer. Raises IssuerUnavailable, also where it names another issuer."""
    first_fault: IssuerUnavailable | None = None

    async def fetch(address: str) -> dict[str, Any] | None:
        nonlocal first_fault
        try:
            return await documents.get(address, issuer)
        except IssuerUnavailable as fault:
            first_fault = first_fault or fault
            return None

    try:
        found = await oauth_discovery.issuer_metadata(fetch, issuer, openid_first=True)
    except DiscoveryFailed as problem:
        raise IssuerUnavailable(str(problem)) from None
    if found is None:
        raise first_fault or IssuerUnavailable(f"{issuer} publishes no metadata")
    return found


async def protected_resource(
    url: str, issuer: str | None, documents: Documents, challenge: Challenge | None = None
) -> ProtectedResource:
    """`issuer` is given by the operator and overrides the one that the server names. Raises IssuerUnavailable."""

    async def fetch(address: str) -> dict[str, Any] | None:
        try:
            return await documents.get(address, url)
        except IssuerUnavailable:
            return None

    try:
        found = await oauth_discovery.resource_metadata(fetch, url, challenge or Challenge())
    except DiscoveryFailed as problem:
        raise IssuerUnavailable(str(problem)) from None
    if found is None:
        if issuer is not None:
            return ProtectedResource(url, issuer)
        # A server of 2025-03-26 publishes no metadata; its own origin is then the issuer.
        await issuer_metadata(origin_of(url), documents)
        return ProtectedResource(url, origin_of(url))
    named = strings(found.get("authorization_servers"))
    if issuer is None and not named:
        raise IssuerUnavailable(
            f"the metadata of {url} names no authorization server; set `issuer` in the server's auth"
        )
    return ProtectedResource(
        str(found.get("resource") or url), issuer or named[0], strings(found.get("scopes_supported"))
    )


async def authority_of(issuer: str, documents: Documents) -> AuthorizationServer:
    """Raises IssuerUnavailable."""
    try:
        found = authorization_server(issuer, await issuer_metadata(issuer, documents))
    except DiscoveryFailed as problem:
        raise IssuerUnavailable(str(problem)) from None
    if not documents.allows(found.authorization_endpoint, issuer):
        # A person would type their password there.
        raise IssuerUnavailable(f"{found.authorization_endpoint[:200]!r} is not a safe address: https is required")
    return found


async def token_endpoint(issuer: str, documents: Documents) -> str:
    """Raises IssuerUnavailable."""
    found = (await issuer_metadata(issuer, documents)).get("token_endpoint")
    if not isinstance(found, str):
        raise IssuerUnavailable(f"the metadata of {issuer} has no token_endpoint")
    return found


def joined_scopes(*each: str | None) -> str | None:
    """All scopes in the given texts, each once."""
    words = [word for text in each if text for word in text.split()]
    return " ".join(dict.fromkeys(words[:MAX_SCOPES])) or None
