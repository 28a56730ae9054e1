"""Requests and replies of the console and the API as values, and event streams.

A framework would cost more than it saves for these routes; this module is loaded with the first request to the console.
"""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import msgspec

from taskgate.access.open_stream import CONNECTION, OpenStream
from taskgate.access.proof import HttpProof
from taskgate.core import wire

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY: Final = 256 * 1024
PAGE: Final = 50
MAX_FORM_FIELDS: Final = 512
LONGEST_PAGE: Final = 1000
_encode = msgspec.json.Encoder().encode

SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
        b"frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types taskgate",
    ),
)


_CACHED: Final = b"cache-control"
_NOT_KEPT: Final = (_CACHED, b"no-store")


class BodyTooLarge(Exception):
    """The body exceeds `MAX_BODY`."""


class RequestProblem(Exception):
    """A request that cannot be served: JSON routes return it as an error, pages show it as a message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class WebRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    proof: HttpProof
    """Its `Authorization` header or certificate, and its origin."""
    body: bytes = b""
    locked: bool = False
    """Whether approving also requires the operator's passphrase."""
    raw_query: str = ""

    def __repr__(self) -> str:
        """Without headers and body, which contain credentials."""
        return f"WebRequest({self.method} {self.path})"

    @property
    def is_json(self) -> bool:
        return self.headers.get(b"content-type", b"").split(b";")[0].strip().lower() == b"application/json"

    def form(self) -> dict[str, str]:
        return _first(self.body.decode("utf-8", "replace"))

    def json(self) -> dict[str, Any]:
        """The body as an object; an empty body is an empty object. Raises ValueError and MalformedJson."""
        if not self.body:
            return {}
        value = read_json(self.body)
        if not isinstance(value, dict):
            raise ValueError("the body must be a JSON object")
        return value

    def cookie(self, name: str) -> str | None:
        try:
            jar = SimpleCookie(self.headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return None
        return jar[name].value if name in jar else None


def read_json(text: bytes) -> Any:
    """Parse untrusted JSON with the strictness and limits of MCP messages. Raises MalformedJson."""
    return wire.parse_strictly(text, wire.MAX_DEPTH, wire.MAX_NODES)


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __repr__(self) -> str:
        """Without headers and body, which may contain a new token or cookie."""
        return f"Answer({self.status}, {len(self.body)} bytes of {self.content_type})"


class EventAnswer(msgspec.Struct, frozen=True):
    """An event stream of encoded frames."""

    frames: AsyncGenerator[bytes]
    over: Callable[[], None] | None = None
    """Called once when the stream has ended or was never started."""


def json_answer(value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(status, _encode(value), "application/json", headers)


def problem(status: int, text: str) -> Answer:
    return json_answer({"error": text}, status)


def limit_of(request: WebRequest) -> int:
    """The maximum number of rows of one page. Raises ValueError."""
    limit = request.query.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit()) or len(limit) > 9 or not 0 < int(limit) <= LONGEST_PAGE:
        raise ValueError(f"limit must be a whole number from 1 to {LONGEST_PAGE}")
    return int(limit)


def redirect(where: str, *headers: tuple[bytes, bytes]) -> Answer:
    text = f'<a href="{html.escape(where)}">Continue</a>'.encode()
    return Answer(303, text, headers=((b"location", where.encode("latin-1")), *headers))


async def read_request(scope: Scope, receive: Receive) -> WebRequest:
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            break
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise BodyTooLarge
        if not event.get("more_body", False):
            break
    raw_query = scope["query_string"].decode("latin-1")
    headers = dict(scope["headers"])
    return WebRequest(
        method=scope["method"],
        path=scope["path"],
        query=_first(raw_query),
        headers=headers,
        proof=HttpProof(scope[CONNECTION].arrival, headers.get(b"authorization"), scope["headers"]),
        body=b"".join(parts),
        raw_query=raw_query,
    )


async def send_stream(stream: OpenStream, answer: EventAnswer) -> None:
    """Send frames until they, the credential or the connection end."""
    headers = [(b"content-type", b"text/event-stream"), *SAFE, _NOT_KEPT]
    try:
        async with aclosing(answer.frames) as frames:
            with stream:
                await stream.send({"type": "http.response.start", "status": 200, "headers": headers})
                async for frame in frames:
                    await stream.send({"type": "http.response.body", "body": frame, "more_body": True})
        await stream.finish()
    finally:
        if answer.over is not None:
            answer.over()


async def send_answer(send: Send, answer: Answer) -> None:
    headers = [
        (b"content-length", b"%d" % len(answer.body)),
        (b"content-type", answer.content_type.encode("latin-1")),
        *SAFE,
        *(answer.headers if _CACHED in (name for name, _ in answer.headers) else (*answer.headers, _NOT_KEPT)),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _first(text: str) -> dict[str, str]:
    try:
        return {
            key: values[0]
            for key, values in parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS).items()
        }
    except ValueError:
        return {}


def with_query(path: str, parameters: Mapping[str, str | None], **changed: str | None) -> str:
    """An address with these query parameters, some of them changed; empty ones are omitted."""
    query = {key: value for key, value in {**parameters, **changed}.items() if value}
    return f"{path}?{urlencode(query)}" if query else path
