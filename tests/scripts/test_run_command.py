"""A script run by `taskgate run` and by the client library, at a real gateway with real workers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.crash_setup import Setup, running_setup

import taskgate.client.sync
from taskgate.cli.command_line import BadParameter
from taskgate.cli.run_script import read_inputs
from taskgate.client import connect

ON: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}
CODE = "await books.read(call='from a script')\nprint('almost done')\ninputs['n'] + 1\n"


def test_inputs_are_json_or_text() -> None:
    assert read_inputs(["n=1", "name=ann", "list=[1,2]"]) == {"n": 1, "name": "ann", "list": [1, 2]}
    with pytest.raises(BadParameter):
        read_inputs(["n"])


async def command(setup: Setup, *words: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taskgate", *words, "--gateway", setup.gateway.url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode, out.decode()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_command_and_client_library_run_a_script(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    (tmp_path / "script.py").write_text(CODE)
    async with running_setup(tmp_path, more=ON) as setup:
        code, out = await command(setup, "run", str(tmp_path / "script.py"), "--input", "n=41", "--json")
        assert code == 0
        last = json.loads(out.splitlines()[-1])
        assert last["result"]["structuredContent"]["result"] == 42
        async with connect(setup.gateway.url) as session:
            result = await session.run_script(CODE, {"n": 1})
            assert result.structured_content is not None
            assert (result.structured_content["result"], result.structured_content["printed"]) == (2, "almost done\n")

        def blocking() -> tuple[object, object]:
            with taskgate.client.sync.connect(setup.gateway.url) as session:
                content = session.run_script(CODE, {"n": 2}).structured_content
                assert content is not None
                return content["result"], content["printed"]

        assert await asyncio.to_thread(blocking) == (3, "almost done\n")
        program, *words = setup.gateway.stdio_command()
        async with connect([program, *words]) as session:
            result = await session.run_script(CODE, {"n": 3})
            assert result.structured_content is not None
            assert result.structured_content["result"] == 4
        assert setup.ledger.count("from a script") == 4
