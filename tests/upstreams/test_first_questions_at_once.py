"""Two sessions without a stream of their own whose server, a program, asks both for the first time at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Gateway, virtual_time

SERVER = Path(__file__).with_name("question_server.py")
ANSWERS: dict[str, Any] = {"elicitation/create": {"action": "accept", "content": {"value": "blue"}}}


@pytest.mark.parametrize("instances", ["auto", "per_session"])
@virtual_time
async def test_first_questions_of_two_sessions_at_once_are_both_answered(instances: str) -> None:
    server = {"command": sys.executable, "args": [str(SERVER)], "instances": instances}
    async with Gateway({"servers": {"shop": server}}) as gate:
        callers = [await gate.caller("2025", capabilities={"elicitation": {}}, answers=ANSWERS) for _ in range(2)]
        calls = [caller.begin_call("shop__ask") for caller in callers]
        for call in calls:
            assert json.loads((await call.done(15)).text) == ANSWERS["elicitation/create"]
        assert [len(caller.asked) for caller in callers] == [1, 1]
