"""Encode and decode JSON-RPC messages.

Integers of any size are kept exactly. The fast decoder rejects lone surrogates, which some servers send in otherwise valid
text, so the standard library's decoder is tried second.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from taskgate.client.errors import InvalidReply
from taskgate.mcp.json_errors import UNDECODABLE

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Encode a message as compact JSON. Raises `TypeError` for a value that JSON does not support."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray) -> Any:
    """Decode a JSON value. Raises InvalidReply."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE:
        return _decode_leniently(data)


def decode_messages(data: bytes | bytearray) -> list[Message]:
    """Decode a JSON-RPC message, or a batch, which servers of 2025-03-26 may send. Raises InvalidReply."""
    value = decode(data)
    messages = value if isinstance(value, list) else [value]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidReply("the server sent JSON that is not a JSON-RPC message")
    return messages


def is_reply_to(message: Message, request_id: int | str) -> bool:
    """Whether this is the response to a request; some servers return a numeric id as a string."""
    if "method" in message or ("result" not in message and "error" not in message):
        return False
    answered = message.get("id")
    return answered == request_id or (answered is not None and str(answered) == str(request_id))


def _decode_leniently(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"the server sent something that is not JSON: {bytes(data[:80])!r}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
