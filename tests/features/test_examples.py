"""The examples work: configurations build, scripts run against a real gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.features.wire_client import config
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end

pytestmark = pytest.mark.timeout(60)
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
async def test_an_example_configuration_builds(path: Path, tmp_path: Path) -> None:
    env = {"TASKGATE_STATE_DIR": str(tmp_path)}
    code, out, err = await run_to_end([sys.executable, "-m", "taskgate", "check", "-c", path], env)
    assert code == 0, out + err


async def test_arguments_are_completed_by_the_example() -> None:
    async with running_gateway(config()) as running:
        program: list[str | Path] = [
            sys.executable,
            EXAMPLES / "complete_arguments.py",
            running.url,
            "weather",
            "city",
            "Par",
        ]
        code, out, err = await run_to_end(program)
        assert (code, out.split()[:2]) == (0, ["Paris", "Parma"]), err


async def test_the_agent_loop_runs_with_its_scripted_model() -> None:
    program: list[str | Path] = [
        sys.executable,
        EXAMPLES / "agent_loop.py",
        "Say something",
        "--",
        sys.executable,
        "-m",
        "taskgate.demo.files",
    ]
    code, out, err = await run_to_end(program)
    assert code == 0, out + err


DEMO = {"schema": 1, "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}}


async def test_the_example_of_a_task_shows_progress_result_and_answer() -> None:
    async with running_gateway(DEMO) as running:
        code, out, err = await run_to_end([sys.executable, EXAMPLES / "follow_a_task.py", running.url])
        assert code == 0, out + err
        assert out.startswith("task: tg_")
        assert " of " in out
        assert "completed" in out
        assert "asked: " in out
        assert "Ann" in out.splitlines()[-1]


async def test_the_example_of_vendor_methods_makes_a_task_under_its_own_id() -> None:
    async with running_gateway({**DEMO, "compat": {"vendor_methods": True}}) as running:
        code, out, err = await run_to_end([sys.executable, EXAMPLES / "vendor_methods.py", running.url])
        assert code == 0, out + err
        lines = out.splitlines()
        assert lines[0].startswith("created: report-")
        assert "readme.txt" in out
        assert lines[-1] == "shown: completed files__list_files int"
