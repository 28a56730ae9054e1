"""Fetches small JSON documents of issuers: metadata, keys, introspection results.

The operator names an issuer, but not the addresses in its documents. So: https only (http where the operator named an http
issuer, and then only at its own origin), no redirects, no proxies from the environment, at most a megabyte and a few seconds. A
document that names another host can at worst cause a TLS connection, which fails unless that host owns the name.

Where a server's documents may name the issuer itself, `GuardedDocuments` also refuses addresses in private networks.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from taskgate.core import wire
from taskgate.identity.strict_json import NotStrict, strict_object
from taskgate.late_imports import load
from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.ports.caller_credentials import IssuerFailed, IssuerUnavailable

if TYPE_CHECKING:
    import httpx2


MAX_BYTES: Final = 1_048_576
READ_AT_ONCE: Final = 16 * 1024
"""Longer documents are parsed in a thread."""
WITHIN_S: Final = 5.0
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_AWAY: Final = frozenset({429, 502, 503, 504})
"""Statuses that say nothing about the request: the issuer, or a proxy before it, serves none at present."""


class IssuerRefused(IssuerFailed):
    """The issuer refused the request. `error` is its OAuth error code."""

    def __init__(self, text: str, error: str) -> None:
        super().__init__(text)
        self.error = error


class Documents(msgspec.Struct, eq=False):
    _client: Callable[[], httpx2.AsyncClient]

    async def get(self, url: str, issuer: str) -> dict[str, Any]:
        """Raises IssuerUnavailable."""
        return await self._send("GET", url, issuer, {}, b"")

    async def post_form(
        self, url: str, issuer: str, form: Mapping[str, str], credentials: tuple[str, str] | None
    ) -> dict[str, Any]:
        """Raises IssuerUnavailable, and IssuerRefused where the issuer returned an error code."""
        headers = {"content-type": _FORM, **(_basic(*credentials) if credentials is not None else {})}
        return await self._send("POST", url, issuer, headers, urlencode(form).encode())

    async def post_json(self, url: str, issuer: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Raises IssuerUnavailable, and IssuerRefused where the issuer returned an error code."""
        return await self._send("POST", url, issuer, {"content-type": _JSON}, wire.encode(dict(value)))

    async def challenge(self, url: str) -> str:
        """The `WWW-Authenticate` header of a server's response to a request without a token, or an empty text."""
        hello = wire.encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        headers = {"content-type": _JSON, "accept": f"{_JSON}, text/event-stream"}
        client = HttpClient(connect_timeout_s=WITHIN_S, max_response_bytes=MAX_BYTES)
        try:
            reply = await client.exchange(Target.parse(url, headers), b"POST", (), hello, deadline_s=WITHIN_S)
        except (HttpFailure, ValueError):
            return ""
        finally:
            await client.close()
        return reply.headers.get(b"www-authenticate", b"")[:4096].decode("latin-1")

    async def _send(
        self, method: str, url: str, issuer: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        if not self.allows(url, issuer):
            raise IssuerUnavailable(f"{url[:200]} is not a safe address: https is required")
        try:
            async with asyncio.timeout(WITHIN_S):
                status, reply = await self._exchange(method, url, {"accept": _JSON, **headers}, body)
        except TimeoutError:
            raise IssuerUnavailable(f"{url[:200]} did not respond within {WITHIN_S:.0f} s") from None
        read = partial(_object_in, status, reply, url)
        return read() if len(reply) <= READ_AT_ONCE else await asyncio.to_thread(read)

    def allows(self, url: str, issuer: str) -> bool:
        """Whether an address in the documents of this issuer may be used, to fetch from or to send a person to."""
        return may_be_fetched(url, issuer)

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        await load("httpx2")
        import httpx2

        # The first use creates the client, which reads the trust store.
        client = await asyncio.to_thread(self._client)
        try:
            request = client.build_request(method, url, content=body, headers=dict(headers))
            reply = await client.send(request, stream=True, follow_redirects=False)
            try:
                return reply.status_code, await _read(reply, url)
            finally:
                await reply.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as fault:
            raise IssuerUnavailable(f"{url[:200]} cannot be reached ({type(fault).__name__})") from None


class GuardedDocuments(Documents, eq=False):
    """For addresses that a server named: hosts that the operator did not name are reached only over https and only at public
    addresses, and the connection is made to the addresses that were checked.
    """

    _named: Collection[str]

    def allows(self, url: str, issuer: str) -> bool:
        return may_be_fetched(url, url if _host(url) in self._named else issuer) and (
            url.startswith("https:") or _host(url) in self._named
        )

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if _host(url) in self._named:
            return await super()._exchange(method, url, headers, body)
        client = HttpClient(connect_timeout_s=WITHIN_S, max_response_bytes=MAX_BYTES)
        try:
            target = Target.parse(url, headers, public_only=True)
            reply = await client.exchange(target, method.encode(), (), body, deadline_s=WITHIN_S)
        except (HttpFailure, ValueError) as fault:
            raise IssuerUnavailable(f"{url[:200]} cannot be used: {fault}") from None
        finally:
            await client.close()
        return reply.status, reply.body


async def _read(reply: httpx2.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise IssuerFailed(f"{url[:200]} sent more than {MAX_BYTES} bytes")
    return bytes(body)


def _object_in(status: int, body: bytes, url: str) -> dict[str, Any]:
    try:
        value = strict_object(body)
    except NotStrict as fault:
        if status in (200, 201):
            raise IssuerFailed(f"{url[:200]} returned no valid JSON object: {fault}") from None
        value = {}
    if status in (200, 201):
        return value
    text = f"{url[:200]} returned status {status}"
    error = value.get("error")
    if status in (400, 401, 403) and isinstance(error, str) and error.isidentifier():
        raise IssuerRefused(f"{text}: {error[:60]}", error)
    raise IssuerUnavailable(text) if status in _AWAY else IssuerFailed(text)


def _basic(name: str, secret: str) -> dict[str, str]:
    """RFC 6749, section 2.3.1: both parts are form-encoded before they are joined."""
    pair = f"{quote(name, safe='')}:{quote(secret, safe='')}"
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def may_be_fetched(url: str, issuer: str) -> bool:
    """Whether a document of this issuer may be fetched from there."""
    try:
        requested, trusted = urlsplit(url), urlsplit(issuer)
        ports = requested.port, trusted.port
    except ValueError:
        return False
    if not requested.hostname or "@" in requested.netloc or not url.isprintable() or " " in url:
        return False
    same_origin = (requested.scheme, requested.hostname, ports[0]) == (trusted.scheme, trusted.hostname, ports[1])
    return requested.scheme == "https" or (requested.scheme == "http" and same_origin)
