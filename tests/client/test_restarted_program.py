"""The program in docs/client.md that may be killed and started again: nothing that it calls is executed twice."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.blocks import blocks_of
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end, start

from taskgate import clock

pytestmark = pytest.mark.timeout(300)
SERVER = Path(__file__).parent / "servers" / "resizing_server.py"
DEADLINE_S = 120.0


async def reached(fact: Callable[[], bool]) -> None:
    deadline = clock.monotonic() + DEADLINE_S
    while not fact():
        assert clock.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


async def test_program_killed_twice_executes_nothing_twice(tmp_path: Path) -> None:
    (block,) = [block for block in blocks_of("docs/client.md") if "resize_all.py" in block.body[:40]]
    program, ledger = tmp_path / "resize_all.py", tmp_path / "ledger"
    program.write_text(block.body)
    token = {"id": "batch", "sha256": hashlib.sha256(b"token-of-batch").hexdigest()}
    server = {"command": sys.executable, "args": [str(SERVER), str(ledger)]}
    config = {"schema": 1, "servers": {"images": server}, "tokens": [token]}

    def executed() -> list[str]:
        return ledger.read_text().splitlines() if ledger.exists() else []

    async with running_gateway(config, tmp_path / "gateway") as gateway:
        env = {"GATEWAY_URL": gateway.url, "GATEWAY_TOKEN": "token-of-batch"}
        for so_many in (3, 10):
            killed = await start([sys.executable, program], env)
            await reached(lambda wanted=so_many: len(executed()) >= wanted)  # type: ignore[misc]
            killed.process.send_signal(signal.SIGKILL)
            await killed.process.wait()
            assert len(executed()) < 20
        code, out, err = await run_to_end([sys.executable, program], env)
    assert code == 0, err
    assert Counter(executed()) == {f"photo-{number}.jpg": 1 for number in range(20)}
    assert out.splitlines() == [f"photo-{number}.jpg is 640 pixels wide" for number in range(20)]
