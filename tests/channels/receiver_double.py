"""A receiver of webhooks on the loopback that answers as scripted and checks every signature with its own code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Receiver:
    """`answers` are (status, headers) for the next requests; after them every request is taken."""

    url: str
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@asynccontextmanager
async def receiver(secret: bytes) -> AsyncIterator[Receiver]:
    """A running receiver."""
    made = Receiver("")

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        if request.headers["webhook-signature"] != f"v1,{mac}":
            return web.Response(status=401)
        made.got.append(json.loads(body))
        made.headers.append(dict(request.headers))
        status, headers = made.answers.pop(0) if made.answers else (204, {})
        return web.Response(status=status, headers=headers)

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield made
    finally:
        await runner.cleanup()
