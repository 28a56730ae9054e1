"""On standard streams everything shares one line: a caller receives its task's id before any notification about that task."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.gateway.test_stdio_drain import StdioClient, stdio_client


async def test_the_id_of_a_task_arrives_before_its_notifications(tmp_path: Path) -> None:
    async with stdio_client(tmp_path, stateless=False, drain="2s") as client:
        received = [message for number in range(5) for message in await _made(client, 100 + number)]
        known: set[str] = set()
        for message in received:
            if message.get("method") == "notifications/tasks/status":
                assert message["params"]["taskId"] in known
            elif "result" in message and "task" in message["result"]:
                known.add(message["result"]["task"]["taskId"])
        assert len(known) == 5


async def _made(client: StdioClient, number: int) -> list[dict[str, Any]]:
    """All messages until a task is created and has ended."""
    arguments = {"value": number}
    client.send(number, "tools/call", {"name": "a__mirror", "arguments": arguments, "task": {"ttl": 60000}})
    received: list[dict[str, Any]] = []
    assert client.process.stdout is not None
    async with asyncio.timeout(60):
        while not any("completed" in json.dumps(message) for message in received):
            received.append(json.loads(await client.process.stdout.readline()))
    return received
