"""HTTP requests to addresses that a server or an authorization server named.

https only, or http on loopback; no redirects; limited to ten seconds and one megabyte.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from taskgate.client.errors import InvalidReply, LoginFailed
from taskgate.client.http_replies import read_failure
from taskgate.client.messages import decode, encode
from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply
from taskgate.mcp.http.target import Target

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS, MAX_BYTES = 10.0, 1_048_576


class Fetcher(msgspec.Struct, frozen=True):
    """Sends the HTTP requests of a login."""

    tls: ssl.SSLContext | None = None

    async def get_json(self, url: str) -> dict[str, Any] | None:
        """Return the JSON object at `url`, or None. Raises LoginFailed or a connection error."""
        reply = await self._send(b"GET", url, {}, b"")
        return read_object(reply) if reply.status == 200 else None

    async def post_json(self, url: str, body: Mapping[str, Any]) -> HttpReply:
        return await self._send(b"POST", url, {"content-type": "application/json"}, encode(dict(body)))

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> HttpReply:
        kind = {"content-type": "application/x-www-form-urlencoded", **headers}
        return await self._send(b"POST", url, kind, urlencode(form).encode())

    async def _send(self, verb: bytes, url: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        if not _is_safe(urlsplit(url)):
            raise LoginFailed(f"{url!r} is not a safe login address: https is required")
        try:
            target = Target.parse(url, {"accept": "application/json", **headers})
        except ValueError as error:
            raise LoginFailed(f"{url!r} is not a valid URL: {error}") from error
        client = HttpClient(connect_timeout_s=SECONDS, max_response_bytes=MAX_BYTES, ssl_context=self.tls)
        try:
            return await client.exchange(target, verb, (), body, deadline_s=SECONDS)
        except HttpFailure as failure:
            raise read_failure(failure, target) from failure
        finally:
            await client.close()


def may_be_opened(address: str) -> bool:
    """Whether an address is safe to open in a browser: as for requests, https or http on loopback; no files or scripts."""
    try:
        return _is_safe(urlsplit(address)) and address.isprintable() and " " not in address
    except ValueError:
        return False


def _is_safe(parts: SplitResult) -> bool:
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def read_object(reply: HttpReply) -> dict[str, Any] | None:
    try:
        value = decode(reply.body)
    except InvalidReply:
        return None
    return value if isinstance(value, dict) else None
