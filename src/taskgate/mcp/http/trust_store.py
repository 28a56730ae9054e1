"""The TLS context with the machine's trusted certificates, loaded once in a thread.

Loading takes about 50 ms, so it happens with the first TLS connection and does not block the event loop.
"""

from __future__ import annotations

import asyncio
import os
import ssl

_contexts: dict[tuple[str | None, ...], ssl.SSLContext] = {}


async def default_context() -> ssl.SSLContext:
    """Return the shared context for connections without their own."""
    place = tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    context = _contexts.get(place)
    if context is None:
        context = _contexts[place] = await asyncio.to_thread(ssl.create_default_context)
    return context
