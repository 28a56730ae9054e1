"""What a stateless request declares in its headers and its envelope, which must agree.

A caller that repeats the head of its calls usually repeats their form as well, and then nothing of this is determined again.
"""

from __future__ import annotations

from taskgate.core.generations.stateless import check_headers, read_envelope
from taskgate.core.wire import Message
from taskgate.inbound.http.narrowing import narrowing_of
from taskgate.inbound.http.post_head import Declared, PostHead


def declared_by(head: PostHead, message: Message) -> Declared:
    """Read the envelope and compare it with the headers. Raises CallerError."""
    kept, form = head.declared, message.form
    if kept is not None and kept.form is form:
        return kept
    params = message.params
    envelope = read_envelope(params, head.headers.get(b"mcp-protocol-version"))
    check_headers(message.method, params, envelope.version, head.headers)
    declared = Declared(envelope, narrowing_of(head.query, head.headers, head.every_header), form)
    if form is not None:
        head.keep_declared(declared)
    return declared
