from __future__ import annotations

import pytest
from tests.scripts.replay_interpreter import ReplayInterpreter

from taskgate.assembly import scripts

REAL = ("test_running_scripts.py", "test_before_running.py")
"""Tests of the gateway on the real interpreter. Others start hundreds of gateways, each of which would start workers of its own."""


@pytest.fixture(autouse=True)
def _interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name not in REAL:
        monkeypatch.setattr(scripts, "interpreter", ReplayInterpreter)
