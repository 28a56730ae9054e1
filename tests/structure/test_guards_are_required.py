"""Guards between a call and a tool, or between a server and a person, are required arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.relay.suspended_calls import SuspendedCalls
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.deadline_enforcement import DeadlineEnforcement
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.store.operations.tasks import Intend

GUARDS: list[tuple[Callable[..., Any], str]] = [
    (Attempts, "recheck"),
    (Attempts, "budgets"),
    (CallGate, "pre_send"),
    (Intend, "recheck"),
    (TaskResults, "check_output"),
    (TaskResults, "truncate"),
    (TaskResults, "urls"),
    (TaskQuestions, "urls"),
    (Relay, "urls"),
    (SuspendedCalls, "urls"),
    (Catalogs, "inspect"),
    (Catalogs, "quarantine"),
    (Pins, "quarantine"),
    (DeadlineEnforcement, "approval_due"),
]


@pytest.mark.parametrize(("made", "guard"), GUARDS)
def test_a_guard_has_no_default_and_may_not_be_none(made: Callable[..., Any], guard: str) -> None:
    parameter = inspect.signature(made).parameters[guard]
    assert parameter.default is inspect.Parameter.empty
    assert "None" not in str(parameter.annotation).rpartition("->")[0], parameter


def _others(made: Callable[..., Any], left_out: str) -> dict[str, object]:
    return {name: object() for name in inspect.signature(made).parameters if name not in (left_out, "self")}


def test_the_runner_of_tasks_is_not_made_without_its_recheck() -> None:
    Attempts(**_others(Attempts, ""))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="recheck"):
        Attempts(**_others(Attempts, "recheck"))  # type: ignore[arg-type]


def test_the_type_checker_rejects_a_missing_guard(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    wiring = root / "src" / "taskgate" / "gateway" / "wiring" / "tasks.py"
    forgetful = wiring.read_text().replace("        recheck=recheck,\n", "", 1)
    assert forgetful != wiring.read_text()
    shadow = tmp_path / "wiring.py"
    shadow.write_text(forgetful)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--shadow-file", str(wiring), str(shadow), str(wiring)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=root,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    assert 'Missing named argument "recheck" for "Attempts"' in found.stdout
