"""What a stateless request declares in its headers and its envelope, which must agree.

A caller that repeats the head of its requests usually repeats the envelope as well, and then nothing of this is determined again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from taskgate.core import wire
from taskgate.core.generations.stateless import Envelope, check_headers, name_header, read_envelope
from taskgate.core.meta import META
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import Message
from taskgate.inbound.http.narrowing import narrowing_of

if TYPE_CHECKING:
    from taskgate.inbound.http.post_head import PostHead

MAX_KEPT_BYTES: Final = 2048
"""Maximum size of params whose envelope is kept with the head: every connection may keep one."""


class Declared(msgspec.Struct, frozen=True):
    envelope: Envelope
    narrowing: SessionRequest
    method: str
    name: str | None
    """What the headers have named besides the method."""
    meta: bytes
    """The `_meta` with the envelope, encoded. Decoded values could not be compared: in Python, 1 equals true."""


def declared_by(head: PostHead, message: Message) -> Declared:
    """Read the envelope and compare it with the headers. Raises CallerError."""
    params, method = message.params, message.method
    raw, kept = message.raw_params, head.declared
    meta, name = b"", name_header(method, params)
    if head.is_repeated and raw is not None and len(raw) <= MAX_KEPT_BYTES:
        meta = wire.encode(params.get(META))
        if kept is not None and kept.meta == meta and kept.method == method and kept.name == name:
            return kept
    envelope = read_envelope(params, head.headers.get(b"mcp-protocol-version"))
    check_headers(method, params, envelope.version, head.headers)
    declared = Declared(envelope, narrowing_of(head.query, head.headers, head.every_header), method, name, meta)
    if meta:
        head.keep_declared(declared)
    return declared
