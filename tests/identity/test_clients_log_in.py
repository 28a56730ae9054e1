"""A client that people use logs in by itself: the Inspector finds the issuer by our metadata, and its person agrees there."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import httpx2
import pytest
from tests.harness.absent import HOME
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port
from tests.identity.real_provider import RealProvider, real_provider, web_client

pytestmark = [pytest.mark.peers("oidc", "inspector"), pytest.mark.slow]
INSPECTOR = (str(HOME / "node"), str(HOME / "inspector/node_modules/.bin/mcp-inspector"), "--cli")
DEADLINE_S = 120


async def inspected(gate: Gateway, folder: Path, provider: RealProvider | None, *words: str) -> str:
    """What the Inspector prints about our tools. With a provider, its person is `ann` and opens the page that it shows."""
    env = {
        **os.environ,
        "HOME": str(folder),
        "MCP_STORAGE_DIR": str(folder),
        "BROWSER": "true",
        "MCP_AUTO_OPEN_ENABLED": "true",
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    command = [*INSPECTOR, gate.url, "--transport", "http", "--method", "tools/list", *words]
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    assert program.stdout is not None
    assert program.stderr is not None
    reported = ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            reading = asyncio.create_task(program.stdout.read())
            while line := (await program.stderr.readline()).decode():
                reported += line
                page = re.search(r"https?://127\.0\.0\.1:\d+/auth\?\S+", line)
                if page is not None and provider is not None:
                    landed = await provider.log_in(page[0], "ann")
                    async with httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_S) as browser:
                        assert (await browser.get(landed)).status_code == 200
            return (await reading).decode() or reported
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


async def test_the_inspector_logs_in_and_lists_and_without_a_login_it_does_not(tmp_path: Path) -> None:
    callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
    client = web_client("inspector", [callback])
    async with real_provider(accounts={"ann": {"groups": ["sre"]}}, clients=[client]) as provider:
        gate = Gateway(tmp_path, free_port())
        (tmp_path / "state").mkdir()
        jwt = {"issuer": provider.url, "claims": {"groups": "groups"}}
        scope = {"default_servers": ["*"], "require": {"groups": ["sre"], "oauth_scopes": ["read"]}}
        gate.write({"public_url": gate.base, "auth": {"jwt": [jwt]}, "scopes": {"default": scope}})
        await gate.start()
        try:
            alone = await inspected(gate, tmp_path / "nobody", None, "--stored-auth-only")
            assert "auth_required" in alone, alone
            known = ("--client-id", "inspector", "--client-secret", client["client_secret"], "--callback-url", callback)
            listed = await inspected(gate, tmp_path / "ann", provider, *known)
            assert json.loads(listed).get("tools"), listed
            wrong = ("--header", "Authorization: Bearer wrong", "--stored-auth-only")
            assert "auth_required" in await inspected(gate, tmp_path / "no", None, *wrong)
        finally:
            await gate.kill()
