"""`make clients`: every client of the matrix plays every scene through Taskgate, as a table.

python -m tests.clients.run                     # all
python -m tests.clients.run --only smolagents   # those whose name has this in it
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.clients.client_setup import Setup, running_setup
from tests.clients.matrix import CLIENTS, Client
from tests.clients.scenarios import SCENES, Play
from tests.harness.absent import reason_for


async def play(client: Client, scene: str, setup: Setup) -> tuple[bool, str]:
    """Whether the scene passed, and a remark for the table."""
    key = f"{client.name}-{scene}".replace(" ", "-")
    try:
        return True, await SCENES[scene](Play(client, setup, key, controls=True))
    except (AssertionError, TimeoutError) as problem:
        return False, f"NO: {problem}"


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="clients whose name has this in it; may be repeated"
    )
    parser.add_argument("--scene", action="append", choices=SCENES)
    chosen = parser.parse_args()
    wrong = absent = 0
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        async with running_setup(Path(folder)) as setup:
            for client in CLIENTS:
                if chosen.only and not any(part in client.name for part in chosen.only):
                    continue
                if reason := reason_for(client.peer):
                    absent += 1
                    print(f"{client.name}: ABSENT: {reason}", flush=True)
                    continue
                for scene in (scene for scene in chosen.scene or SCENES if scene in client.scenes):
                    right, words = await play(client, scene, setup)
                    wrong += not right
                    print(f"{client.name:28} {scene:10} {words}", flush=True)
    print(f"{wrong} wrong, {absent} clients absent")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
