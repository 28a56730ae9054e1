"""A plain call goes a short way: every file and function on it costs each call, and each reader."""

from __future__ import annotations

import pytest
from tests.house.plain_call import count
from tests.seam import seam

MOST_FILES = 25
MOST_FUNCTIONS = 90
MOST_CALLS = 111


@pytest.mark.parametrize("generation", ["2025", "2026"])
@seam
async def test_a_plain_call_goes_through_few_files_and_functions(generation: str) -> None:
    route = await count(generation)
    assert "gateway/calls/call_tool.py" in route.files, "the count must have seen the call"
    assert len(route.files) <= MOST_FILES, sorted(route.files)
    assert route.functions <= MOST_FUNCTIONS, sorted(route.calls)
    assert route.total <= MOST_CALLS, sorted(route.calls.items())
