"""What a stateless request declares in its headers and its envelope, which must agree.

A caller that repeats the head of its requests usually repeats the envelope as well, and then nothing of this is determined again.
"""

from __future__ import annotations

from typing import Final

from taskgate.core import wire
from taskgate.core.generations.stateless import check_headers, name_header, read_envelope
from taskgate.core.meta import META
from taskgate.core.wire import Message
from taskgate.inbound.http.narrowing import narrowing_of
from taskgate.inbound.http.post_head import Declared, PostHead

MAX_KEPT_BYTES: Final = 2048
"""Maximum size of params whose envelope is kept with the head: every connection may keep one."""


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
