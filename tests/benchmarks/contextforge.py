"""Starts ContextForge (`mcp-contextforge-gateway` on PyPI) with one server: a gateway with its own database and user accounts.

It runs as its package starts it: one process, SQLite, and a token for each request. Its rate limit is switched off, because it
would reject nearly all calls of the load, and its web interface too.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
from tests.harness.absent import HOME
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port, listening, running

FOLDER: Final = HOME / "contextforge"
START_S: Final = 120.0
ADMIN: Final = "admin@example.com"
TOOL_PREFIX: Final = "up-"


@asynccontextmanager
async def running_contextforge(upstream: str) -> AsyncIterator[tuple[str, int, str]]:
    """Yield its address, its process and a token for calls."""
    port, secret = free_port(), secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="contextforge-", ignore_cleanup_errors=True) as place:
        env = _settings(Path(place), port, secret)
        command: list[str | Path] = [FOLDER / "bin/mcpgateway", "--host", "127.0.0.1", "--port", str(port)]
        async with running(command, listening(port), env, Path(place) / "log") as program:
            token = await _token(secret, env)
            base = f"http://127.0.0.1:{port}"
            await _add_server(base, token, upstream)
            yield f"{base}/mcp/", program.pid, token


def _settings(place: Path, port: int, secret: str) -> dict[str, str]:
    password = secrets.token_hex(16) + "aA1!"
    return {
        "DATABASE_URL": f"sqlite:///{place / 'gateway.db'}",
        "PORT": str(port),
        "JWT_SECRET_KEY": secret,
        "AUTH_ENCRYPTION_SECRET": secret,
        "BASIC_AUTH_PASSWORD": password,
        "PLATFORM_ADMIN_PASSWORD": password,
        "CACHE_TYPE": "memory",
        "ENVIRONMENT": "development",
        "LOG_LEVEL": "ERROR",
        "MCPGATEWAY_UI_ENABLED": "false",
        "RATE_LIMITING_ENABLED": "false",
        # The server of the measurement is on this machine.
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    }


async def _token(secret: str, env: Mapping[str, str]) -> str:
    """Made by its own command, which needs some seconds for its imports."""
    command: list[str | Path] = [
        FOLDER / "bin/python",
        "-m",
        "mcpgateway.utils.create_jwt_token",
        "--username",
        ADMIN,
        "--admin",
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--exp",
        "600",
        "--secret",
        secret,
        env=dict(env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(START_S):
        written, _ = await process.communicate()
    return written.decode().split()[-1]


async def _add_server(base: str, token: str, upstream: str) -> None:
    described = {"name": "up", "url": upstream, "transport": "STREAMABLEHTTP", "visibility": "public"}
    async with httpx2.AsyncClient(verify=NO_TLS, timeout=START_S) as http, asyncio.timeout(START_S):
        while True:
            # The port is open before its database is ready.
            reply = await http.post(f"{base}/gateways", json=described, headers={"authorization": f"Bearer {token}"})
            if reply.status_code < 300:
                return
            if reply.status_code < 500:
                raise RuntimeError(f"ContextForge refused the server: {reply.status_code} {reply.text[:200]}")
            await asyncio.sleep(0.5)
