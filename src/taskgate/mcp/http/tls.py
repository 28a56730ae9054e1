"""What certificates of servers are checked against: the trust store of the machine, read once and beside the event loop.

Reading it takes some 50 ms, so only who connects by TLS pays for it, and nobody waits for it besides.
"""

from __future__ import annotations

import asyncio
import os
import ssl

_contexts: dict[tuple[str | None, ...], ssl.SSLContext] = {}


async def default_context() -> ssl.SSLContext:
    """The context for connections that were given none. All of them share it."""
    place = tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    context = _contexts.get(place)
    if context is None:
        context = _contexts[place] = await asyncio.to_thread(ssl.create_default_context)
    return context
