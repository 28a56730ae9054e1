"""Fetches small JSON documents of issuers: their metadata, their keys, their word about a token.

An issuer is named by the operator; what its documents name is not. So: https only (plain http where the operator named a plain
http issuer, and then only at its own origin), no redirects, no proxies from the environment, a megabyte and a few seconds at most.
A document that leads elsewhere can at worst make us open a TLS connection, which fails unless that host owns the name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from taskgate.identity.strict_json import NotStrict, strict_object
from taskgate.ports.credentials import IssuerUnavailable

if TYPE_CHECKING:
    import httpx2

MAX_BYTES: Final = 1_048_576
WITHIN_S: Final = 5.0


class Documents:
    def __init__(self, client: Callable[[], httpx2.AsyncClient]) -> None:
        self._client = client

    async def get(self, url: str, issuer: str) -> dict[str, Any]:
        """Raises IssuerUnavailable."""
        return await self._send("GET", url, issuer, None, None)

    async def post_form(
        self, url: str, issuer: str, form: Mapping[str, str], credentials: tuple[str, str] | None
    ) -> dict[str, Any]:
        """Raises IssuerUnavailable."""
        return await self._send("POST", url, issuer, form, credentials)

    async def _send(
        self, method: str, url: str, issuer: str, form: Mapping[str, str] | None, credentials: tuple[str, str] | None
    ) -> dict[str, Any]:
        import httpx2

        if not may_be_fetched(url, issuer):
            raise IssuerUnavailable(f"{url[:200]} is not a safe address: https is needed")
        try:
            async with asyncio.timeout(WITHIN_S):
                request = self._client().build_request(method, url, data=form, headers={"accept": "application/json"})
                reply = await self._client().send(request, auth=credentials, stream=True, follow_redirects=False)
                try:
                    return await _read(reply, url)
                finally:
                    await reply.aclose()
        except TimeoutError:
            raise IssuerUnavailable(f"{url[:200]} did not answer within {WITHIN_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as fault:
            raise IssuerUnavailable(f"{url[:200]} cannot be reached ({type(fault).__name__})") from None


async def _read(reply: httpx2.Response, url: str) -> dict[str, Any]:
    if reply.status_code != 200:
        raise IssuerUnavailable(f"{url[:200]} answered with status {reply.status_code}")
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise IssuerUnavailable(f"{url[:200]} sent more than {MAX_BYTES} bytes")
    try:
        return strict_object(bytes(body))
    except NotStrict as fault:
        raise IssuerUnavailable(f"{url[:200]} sent no usable JSON object: {fault}") from None


def may_be_fetched(url: str, issuer: str) -> bool:
    """Whether a document of this issuer may be fetched from there."""
    try:
        asked, trusted = urlsplit(url), urlsplit(issuer)
        ports = asked.port, trusted.port
    except ValueError:
        return False
    if not asked.hostname or "@" in asked.netloc or not url.isprintable() or " " in url:
        return False
    same_origin = (asked.scheme, asked.hostname, ports[0]) == (trusted.scheme, trusted.hostname, ports[1])
    return asked.scheme == "https" or (asked.scheme == "http" and same_origin)
