"""`taskgate serve` whose state folder is removed: the process ends, also if something keeps it from closing properly."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port

from taskgate.cli.start_conditions import END_WITHIN_S
from taskgate.lifecycle.lost_files import STATE_CHECK_S

HANGING = (str(Path(__file__).with_name("hanging_gateway.py")),)


@pytest.mark.parametrize("launcher", [("-m", "taskgate"), HANGING], ids=["closes", "hangs while it closes"])
async def test_process_ends_when_its_state_folder_is_removed(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    gateway = Gateway(tmp_path, free_port(), launcher=launcher)
    gateway.state.mkdir()
    gateway.write({"schema": 1, "servers": {}})
    await gateway.start()
    assert gateway.program is not None
    process = gateway.program.process
    try:
        shutil.rmtree(gateway.state)
        async with asyncio.timeout(60):
            assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert str(gateway.state) in gateway.log


def test_process_that_hangs_ends_within_two_seconds() -> None:
    """In virtual time nothing hangs, and in real time a busy machine has no limits: so the sum of the two waits."""
    assert STATE_CHECK_S + END_WITHIN_S < 2
