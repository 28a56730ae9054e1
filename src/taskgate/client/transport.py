"""JSON-RPC messages as bytes, and what the session needs from a transport, whichever it is.

A transport takes one request and comes back with its response; everything else that arrives (notifications, the
server's own requests) it hands to `deliver` the moment it comes. It knows how messages travel, not what they mean.

Decoding keeps integers of any size and never turns them into floats. The fast decoder refuses lone surrogates,
which some servers do send inside otherwise good text, so the standard library's decoder gets a second try.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from taskgate.client.errors import InvalidReply

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

Message = dict[str, Any]
Deliver = Callable[[Message], None]
Header = tuple[bytes, bytes]


class Outgoing(msgspec.Struct, frozen=True):
    """One request on its way out. `headers` go with it over HTTP; `long` marks a wait that may take hours."""

    id: int | str
    method: str
    body: bytes
    headers: tuple[Header, ...] = ()
    long: bool = False


class Login(Protocol):
    """Something that can answer a server's demand for a token."""

    def token(self, url: str) -> str | None: ...

    async def answer(self, url: str, header: str, used: str | None) -> str: ...


class Transport(Protocol):
    """A way to talk to one server."""

    @property
    def closing_cancels(self) -> bool:
        """Whether giving up a request closes something the server sees, so that no cancel message is needed."""
        ...

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        """Send a request and wait for its response."""
        ...

    async def post(self, body: bytes, timeout: float) -> None:
        """Send a notification or a response; nothing comes back."""
        ...

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """The generation is known now."""
        ...

    async def restart(self) -> None:
        """Begin again from nothing, for a server that did not survive being asked for its generation."""
        ...

    async def close(self) -> None: ...


def encode(message: Message) -> bytes:
    """The message as compact JSON. A value JSON cannot carry is the caller's mistake and raises `TypeError`."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray) -> Any:
    """The JSON value in `data`."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _decode_patiently(data)


def decode_messages(data: bytes | bytearray) -> list[Message]:
    """The JSON-RPC message, or the messages of a batch (servers of 2025-03-26 may send one)."""
    value = decode(data)
    messages = value if isinstance(value, list) else [value]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidReply("the server sent JSON that is not a JSON-RPC message")
    return messages


def is_reply_to(message: Message, request_id: int | str) -> bool:
    """Whether this is the response to our request; a few servers answer a number as text."""
    if "method" in message or ("result" not in message and "error" not in message):
        return False
    answered = message.get("id")
    return answered == request_id or (answered is not None and str(answered) == str(request_id))


def _decode_patiently(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"the server sent something that is not JSON: {bytes(data[:80])!r}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
