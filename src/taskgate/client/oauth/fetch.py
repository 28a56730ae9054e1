"""One small HTTP request to an address that a server or an authorization server named.

Only https, or http on this machine; no redirects; a few seconds and one megabyte at most. Used by the rest of this
package.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from taskgate.client.errors import InvalidReply, LoginFailed
from taskgate.client.transport.connection import HttpReply
from taskgate.client.transport.http import HttpPool
from taskgate.client.wire import decode, encode

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS, MOST_BYTES = 10.0, 1_048_576


class Fetcher:
    """Sends the requests of one login."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls

    async def get_json(self, url: str) -> dict[str, Any] | None:
        """The JSON object at `url`, or None if there is none."""
        reply = await self._send("GET", url, {}, b"")
        return read_object(reply) if reply.status == 200 else None

    async def post_json(self, url: str, body: Mapping[str, Any]) -> HttpReply:
        return await self._send("POST", url, {"content-type": "application/json"}, encode(dict(body)))

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> HttpReply:
        kind = {"content-type": "application/x-www-form-urlencoded", **headers}
        return await self._send("POST", url, kind, urlencode(form).encode())

    async def _send(self, verb: str, url: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        if not parts.hostname or not (secure or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
            raise LoginFailed(f"{url!r} is not a safe address to log in at: https is needed")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = {"host": parts.netloc.rpartition("@")[2], "accept": "application/json", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        if (
            not path.isascii()
            or " " in path
            or any(mark in value for value in (path, *lines.values()) for mark in "\r\n\0")
        ):
            raise LoginFailed(f"{url!r} cannot be asked for")
        data = f"{verb} {path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body
        tls = (self._tls or ssl.create_default_context()) if secure else None
        port = parts.port or (443 if secure else 80)
        pool = HttpPool(
            parts.hostname, port, tls, max_connections=1, max_reply_bytes=MOST_BYTES, connect_timeout=SECONDS
        )
        try:
            return await pool.send(data, None, SECONDS)
        finally:
            await pool.close()


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
