"""One gateway in front of the mirror in all its forms, for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running

MIRROR = Path(__file__).parent.parent / "peers" / "mirror_server.py"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """Servers: `old` and `new` over HTTP (2025 and 2026), `pipe` over stdio."""
    async with AsyncExitStack() as stack:
        ports = {"old": free_port(), "new": free_port()}
        for name, generation in (("old", "stateful"), ("new", "stateless")):
            await stack.enter_async_context(
                running([sys.executable, MIRROR, generation, str(ports[name])], listening(ports[name]))
            )
        config = {
            "schema": 1,
            "servers": {
                "old": {"url": f"http://127.0.0.1:{ports['old']}/mcp"},
                "new": {"url": f"http://127.0.0.1:{ports['new']}/mcp"},
                "pipe": {"command": sys.executable, "args": [str(MIRROR), "stdio"]},
            },
            "validate": "off",
        }
        yield await stack.enter_async_context(running_gateway(config))
