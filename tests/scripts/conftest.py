from __future__ import annotations

import pytest
from tests.scripts.replay_interpreter import ReplayInterpreter

from taskgate.assembly import scripts


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "interpreter", ReplayInterpreter)
