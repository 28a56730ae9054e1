"""A plain call costs few calls of functions: what is added to its path, every call pays for."""

from __future__ import annotations

import pytest
from tests.house.plain_call import count
from tests.seam import seam

MOST_CALLS = 111


@pytest.mark.parametrize("generation", ["2025", "2026"])
@seam
async def test_plain_call_costs_few_function_calls(generation: str) -> None:
    route = await count(generation)
    assert "gateway/calls/call_tool.py" in route.files, "the count must have seen the call"
    assert route.total <= MOST_CALLS, sorted(route.calls.items())
