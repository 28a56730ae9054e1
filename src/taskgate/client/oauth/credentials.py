"""Client credentials for one authorization server: pre-registered, a metadata URL, or dynamic registration.

Credentials belong to the issuer that assigned them and are never sent to another.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import msgspec

from taskgate.client.errors import LoginFailed
from taskgate.client.oauth.discovery import Authority
from taskgate.client.oauth.fetcher import Fetcher, read_object
from taskgate.shown_fields import repr_without


class ClientDescription(msgspec.Struct, frozen=True):
    """What the client presents to an authorization server."""

    client_name: str
    redirect_uri: str
    metadata_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None

    __repr__ = repr_without("client_secret")


class Credentials(msgspec.Struct, frozen=True):
    """A client id, its secret, and the authentication method at the token endpoint."""

    client_id: str
    client_secret: str | None
    method: str

    __repr__ = repr_without("client_secret")

    def sign(self, form: dict[str, str]) -> dict[str, str]:
        """Add the client authentication to a token request, and return the headers it needs."""
        if self.method == "client_secret_basic" and self.client_secret is not None:
            pair = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
            return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        form["client_id"] = self.client_id
        if self.method == "client_secret_post" and self.client_secret is not None:
            form["client_secret"] = self.client_secret
        return {}


async def obtain(fetcher: Fetcher, authority: Authority, description: ClientDescription) -> Credentials:
    """Return credentials for this authorization server, in the order of preference of MCP. Raises LoginFailed."""
    if description.client_id is not None:
        secret = description.client_secret
        return Credentials(description.client_id, secret, _method(authority) if secret else "none")
    if authority.takes_metadata_urls and description.metadata_url is not None:
        return Credentials(description.metadata_url, None, "none")
    if authority.registration_endpoint is None:
        raise LoginFailed(f"{authority.issuer} supports no dynamic registration: set client_id or metadata_url")
    return await _register(fetcher, authority, description)


async def _register(fetcher: Fetcher, authority: Authority, description: ClientDescription) -> Credentials:
    preferred = _method(authority)
    body: dict[str, Any] = {
        "client_name": description.client_name,
        "redirect_uris": [description.redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": preferred,
        "application_type": "native",
    }
    reply = await fetcher.post_json(str(authority.registration_endpoint), body)
    given = read_object(reply) if reply.status in (200, 201) else None
    if given is None or not isinstance(given.get("client_id"), str):
        raise LoginFailed(f"{authority.issuer} refused to register this client (HTTP {reply.status})")
    secret, method = given.get("client_secret"), given.get("token_endpoint_auth_method")
    return Credentials(
        given["client_id"],
        secret if isinstance(secret, str) else None,
        method if isinstance(method, str) else preferred,
    )


def _method(authority: Authority) -> str:
    """Return the simplest supported method; a native program cannot keep a secret."""
    for method in ("none", "client_secret_basic", "client_secret_post"):
        if method in authority.auth_methods:
            return method
    return "client_secret_basic" if not authority.auth_methods else authority.auth_methods[0]
