"""The ASGI types used here, and helpers to send a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


async def respond(send: Send, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
    all_headers: Headers = [(b"content-length", b"%d" % len(body)), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    await respond(send, status, body, [JSON, *(headers or ())])
