"""The person who runs `taskgate call` receives questions of its server that are not tied to a call."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.raw_client import RawClient
from tests.harness.terminal import Terminal

pytestmark = pytest.mark.timeout(300)
SERVER = Path(__file__).parents[1] / "upstreams" / "question_server.py"
TOKEN = "ann-token-0123456789abcdef"


@asynccontextmanager
async def staying(gateway: Gateway) -> AsyncIterator[asyncio.Task[Any]]:
    """A session of Ann's with a call that is open at the server."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with RawClient(gateway.url, headers=headers) as ann:
        call = asyncio.create_task(ann.request("tools/call", {"name": "shop__stay", "arguments": {}}))
        yield call
        await call


@pytest.mark.parametrize(
    ("instances", "who"),
    [("shared", ()), ("per_principal", ("--token", TOKEN))],
    ids=["the operator's inbox", "the caller's inbox"],
)
@pytest.mark.parametrize("generation", ["stateful", "stateless"])
async def test_user_at_the_terminal_gets_a_prompt(
    tmp_path: Path, instances: str, who: tuple[str, ...], generation: str
) -> None:
    server = {"command": sys.executable, "args": [str(SERVER)], "instances": instances}
    token = {"id": "ann", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    config = {"schema": 1, "servers": {"shop": server}, "tokens": [token]}
    async with running_gateway(config, tmp_path) as gateway, staying(gateway):
        environment = {**os.environ, "TERM": "xterm", "TASKGATE_STATE_DIR": str(gateway.state)}
        words = ["call", "shop__ask", json.dumps({"company": 1}), "--generation", generation, *who]
        terminal = Terminal([sys.executable, "-m", "taskgate", *words], environment)

        def answer() -> int:
            terminal.wait_for("Which colour?")
            terminal.wait_for("Answer? ")
            terminal.type("y\n")
            terminal.wait_for("value")
            terminal.type("blue\n")
            return terminal.end()

        assert await asyncio.to_thread(answer) == 0, terminal.seen
        assert '"value": "blue"' in terminal.seen
