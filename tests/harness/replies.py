"""The messages in one HTTP reply of a gateway, plain or as an event stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2


async def messages(reply: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        body = await reply.aread()
        if body:
            yield json.loads(body)
        return
    async for line in reply.aiter_lines():
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])
