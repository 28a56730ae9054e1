"""What passes the official conformance suite directly passes it through Taskgate, in both requirement sets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.conformance.arrangements import ARRANGEMENTS, Arrangement, directly
from tests.conformance.suite import REVISIONS, Verdicts, failures, losses, run_suite

pytestmark = [
    pytest.mark.slow,
    pytest.mark.peers("mcp23", "conformance"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("conformance"),
]
EXPECTED: dict[str, list[str]] = json.loads((Path(__file__).parent / "expected_failures.json").read_text())


@pytest.fixture(scope="module")
def direct() -> dict[str, Verdicts]:
    """The verdicts without a gateway, read once for all arrangements."""

    async def run() -> dict[str, Verdicts]:
        async with directly() as url:
            found = await asyncio.gather(*(run_suite(url, revision) for revision in REVISIONS))
        return dict(zip(REVISIONS, found, strict=True))

    return asyncio.run(run())


def test_the_everything_server_passes_directly_except_for_what_is_listed(direct: dict[str, Verdicts]) -> None:
    assert {revision: sorted(failures(verdicts)) for revision, verdicts in direct.items()} == EXPECTED


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda arrangement: arrangement.name)
async def test_what_passes_directly_passes_through(arrangement: Arrangement, direct: dict[str, Verdicts]) -> None:
    async with arrangement.through() as url:
        found = await asyncio.gather(*(run_suite(url, revision) for revision in REVISIONS))
    lost = {
        revision: {name: why for name, why in losses(direct[revision], through).items() if arrangement.owes(name)}
        for revision, through in zip(REVISIONS, found, strict=True)
    }
    assert lost == {revision: {} for revision in REVISIONS}
