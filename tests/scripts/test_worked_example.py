"""The worked example: every way has the same result, and the documentation has its present numbers."""

from __future__ import annotations

from pathlib import Path

from tests.scripts.worked_example import compare
from tests.virtual_time import virtual_time

PAGE = Path(__file__).parents[2] / "docs" / "scripts.md"


@virtual_time
async def test_numbers_of_the_worked_example_are_in_the_documentation() -> None:
    found = await compare()
    results = [result for _, result in found.values()]
    assert results[0]["late"]
    assert all(result == results[0] for result in results)
    page = PAGE.read_text()
    for name, (account, _) in found.items():
        row = f"| {name} | {account.turns} | {account.written:,} | {account.read:,} | {account.seconds:.1f} |"
        assert row in page
