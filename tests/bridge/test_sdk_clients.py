"""Two clients of the official SDKs with bridges at once: a held call of either is approved and answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.bridge_setup import WAIT_S, Setup, configuration, running_setup
from tests.harness.peers import CALLERS

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("mcp23", "ts2")]
PYTHON = next(caller for caller in CALLERS if caller.name == "py23-2025")
TYPESCRIPT = next(caller for caller in CALLERS if caller.name == "ts2-2025")


def started_by_a_client(made: Setup) -> list[str]:
    """Clients start their children with a minimal environment, so the settings are in the command."""
    own = {"TASKGATE_STATE_DIR", "XDG_RUNTIME_DIR", "PYTHONPATH"}
    words = [f"{name}={value}" for name, value in made.environment().items() if name in own]
    return ["env", *words, *made.command_line()]


async def open_approvals(made: Setup) -> list[dict[str, Any]]:
    _, out, _ = await made.command("approvals", "list", "--json")
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"id"')]


async def test_held_calls_of_two_sdk_clients_are_approved_on_the_command_line(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "mirror", "action": "approve"}]}
    async with running_setup(tmp_path, configuration(governance=rules)) as made:
        script = [{"op": "call", "name": "a__mirror", "arguments": {"value": 7}}]
        playing = [
            asyncio.create_task(caller.play(script, command=started_by_a_client(made)))
            for caller in (PYTHON, TYPESCRIPT)
        ]
        decided: set[str] = set()
        async with asyncio.timeout(2 * WAIT_S):
            while not all(play.done() for play in playing):
                for row in await open_approvals(made):
                    code, _, err = await made.command("approvals", "approve", row["id"])
                    assert code == 0, err
                    decided.add(row["id"])
        for play in playing:
            (seen,) = await play
            assert seen["value"]["structuredContent"] == {"value": 7}, seen
        assert len(decided) == 2
        assert len(made.records()) == 1, "both were served by one gateway"
