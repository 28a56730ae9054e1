"""An issuer of tokens on the test's loop: it signs the given claims and serves the given documents at the well-known addresses."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from taskgate import clock

Handler = Callable[[bytes], tuple[int, bytes]]
RSA = RSAKey.generate_key(2048)
OTHER_RSA = RSAKey.generate_key(2048)
EC = ECKey.generate_key("P-256")


def public(key: RSAKey | ECKey, kid: str, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), "kid": kid, **more}


def encoded(value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def signed(header: dict[str, Any], payload: bytes, key: Any) -> str:
    text = jws.serialize_compact(header, payload, key, algorithms=[header["alg"]])
    return text if isinstance(text, str) else text.decode()


class Issuer:
    """`pages` is what it serves, by path; `asked` counts the requests."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        self.silent = False
        self.slow_s = 0.0
        self.keys: list[dict[str, Any]] = [public(RSA, "rsa-1"), public(EC, "ec-1")]
        self.pages: dict[str, Handler] = {
            "/.well-known/openid-configuration": lambda _: (200, json.dumps(self.metadata()).encode()),
            "/keys": lambda _: (200, json.dumps({"keys": self.keys}).encode()),
        }

    def metadata(self) -> dict[str, Any]:
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Valid claims with some of them changed; None removes one."""
        now = int(clock.wall())
        good = {"iss": self.url, "sub": "ann", "aud": "gate", "iat": now, "exp": now + 300, **changes}
        return {name: value for name, value in good.items() if value is not None}

    def token(self, header: dict[str, Any] | None = None, key: Any = RSA, **changes: Any) -> str:
        head = {"alg": "RS256", "kid": "rsa-1", **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return signed(head, json.dumps(self.claims(**changes)).encode(), key)

    def count(self, path: str) -> int:
        return self.asked.count(path)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(length[0]) if length else b""
            self.asked.append(path)
            if self.silent:
                await asyncio.sleep(3600)
            await asyncio.sleep(self.slow_s)
            status, reply = self.pages.get(path, lambda _: (404, b"{}"))(body)  # type: ignore[no-untyped-call]
            lines = f"HTTP/1.1 {status} X\r\ncontent-length: {len(reply)}\r\nlocation: {self.url}/keys\r\n"
            writer.write(f"{lines}connection: close\r\n\r\n".encode() + reply)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def an_issuer(port: int = 7999) -> AsyncIterator[Issuer]:
    issuer = Issuer(port)
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", port)
    try:
        yield issuer
    finally:
        server.close()
