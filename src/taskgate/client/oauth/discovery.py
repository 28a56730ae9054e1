"""What a server says when it refuses a token: the `WWW-Authenticate` header of a 401 or 403. Pure.

One small HTTP request to an address that a server or an authorization server named.

Only https, or http on this machine; no redirects; a few seconds and one megabyte at most. Used by the rest of this
package.

Finds the authorization server of an MCP server: first what the server says about itself, then what that one
says.

Follows MCP's order of well-known addresses (2025-11-25 and 2026-07-28, authorization, discovery) and refuses
answers that are about somebody else. Servers of 2025-03-26 said nothing about themselves: their own origin is
tried then.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from taskgate.client.errors import InvalidReply, LoginFailed
from taskgate.client.transport import decode, encode, read_failure
from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply
from taskgate.mcp.http.target import Target

_PARAMETER = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parts of a challenge that matter to the client."""

    resource_metadata: str | None = None
    scope: str | None = None
    error: str | None = None

    @classmethod
    def from_header(cls, header: str) -> Challenge:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() != "bearer":
            return cls()
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        return cls(found.get("resource_metadata"), found.get("scope"), found.get("error"))


LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS, MOST_BYTES = 10.0, 1_048_576


class Fetcher:
    """Sends the requests of one login."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls

    async def get_json(self, url: str) -> dict[str, Any] | None:
        """The JSON object at `url`, or None if there is none."""
        reply = await self._send(b"GET", url, {}, b"")
        return read_object(reply) if reply.status == 200 else None

    async def post_json(self, url: str, body: Mapping[str, Any]) -> HttpReply:
        return await self._send(b"POST", url, {"content-type": "application/json"}, encode(dict(body)))

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> HttpReply:
        kind = {"content-type": "application/x-www-form-urlencoded", **headers}
        return await self._send(b"POST", url, kind, urlencode(form).encode())

    async def _send(self, verb: bytes, url: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        if not parts.hostname or not (secure or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
            raise LoginFailed(f"{url!r} is not a safe address to log in at: https is needed")
        try:
            target = Target.parse(url, {"accept": "application/json", **headers})
        except ValueError as error:
            raise LoginFailed(f"{url!r} cannot be asked for: {error}") from error
        client = HttpClient(connect_timeout_s=SECONDS, max_response_bytes=MOST_BYTES, ssl_context=self._tls)
        try:
            return await client.exchange(target, verb, (), body, deadline_s=SECONDS)
        except HttpFailure as failure:
            raise read_failure(failure, target) from failure
        finally:
            await client.close()


def may_be_opened(address: str) -> bool:
    """Whether a browser may be sent there: a server must not make it open files or run scripts."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and address.isprintable() and " " not in address


def read_object(reply: HttpReply) -> dict[str, Any] | None:
    try:
        value = decode(reply.body)
    except InvalidReply:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Authority:
    """An authorization server, and the resource it is asked about."""

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
    """The authorization server for the MCP server at `url`."""
    described = await _describe_resource(fetcher, url, challenge)
    if described is None:
        origin = _origin(url)
        return _authority(origin, url, {}, await _describe_issuer(fetcher, origin) or _guess(origin))
    issuers = described.get("authorization_servers")
    issuer = issuers[0] if isinstance(issuers, list) and issuers and isinstance(issuers[0], str) else _origin(url)
    metadata = await _describe_issuer(fetcher, issuer)
    if metadata is None:
        raise LoginFailed(f"the authorization server {issuer} does not describe itself")
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
    """A description of another resource must not decide where this server's user logs in (RFC 9728, section 3.3)."""
    if resource is None:
        return
    wanted, given = urlsplit(url), urlsplit(str(resource))
    same_origin = (wanted.scheme, wanted.netloc) == (given.scheme, given.netloc)
    inside = (wanted.path.rstrip("/") + "/").startswith(given.path.rstrip("/") + "/")
    if not same_origin or not inside:
        raise LoginFailed(f"the server describes itself as {resource!r}, which is not {url!r}")


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
            raise LoginFailed(f"the authorization server calls itself {metadata.get('issuer')!r}, not {issuer!r}")
        return metadata
    return None


def _authority(issuer: str, resource: str, described: dict[str, Any], metadata: dict[str, Any]) -> Authority:
    for name in ("authorization_endpoint", "token_endpoint"):
        if not isinstance(metadata.get(name), str):
            raise LoginFailed(f"the authorization server names no {name}")
    methods = metadata.get("code_challenge_methods_supported")
    if not isinstance(methods, list) or "S256" not in methods:
        raise LoginFailed("the authorization server does not protect the login (no PKCE with S256)")
    registration = metadata.get("registration_endpoint")
    scopes = described.get("scopes_supported")
    return Authority(
        str(metadata.get("issuer") or issuer),
        resource,
        metadata["authorization_endpoint"],
        metadata["token_endpoint"],
        registration if isinstance(registration, str) else None,
        _words(scopes) if isinstance(scopes, list) else None,
        _words(metadata.get("scopes_supported")),
        _words(metadata.get("token_endpoint_auth_methods_supported")),
        metadata.get("client_id_metadata_document_supported") is True,
        metadata.get("authorization_response_iss_parameter_supported") is True,
    )


def _guess(origin: str) -> dict[str, Any]:
    """The fixed endpoints of 2025-03-26 for servers without any metadata."""
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


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()
