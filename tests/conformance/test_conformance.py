"""What passes the official conformance suite directly passes it through Taskgate, in both requirement sets."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests.conformance.arrangements import (
    ARRANGEMENTS,
    OFFICIAL,
    Arrangement,
    Official,
    directly,
    through_replicas,
)
from tests.conformance.suite import REVISIONS, Verdicts, failures, losses, run_suite, tasks_passed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.peers("mcp23", "conformance"),
    pytest.mark.timeout(1_200),
]
EXPECTED: dict[str, list[str]] = json.loads((Path(__file__).parent / "expected_failures.json").read_text())


@pytest.fixture(scope="module")
def direct() -> dict[str, Verdicts]:
    """The verdicts without a gateway, read once for all arrangements."""

    return asyncio.run(verdicts_at(directly()))


async def verdicts_at(server: AbstractAsyncContextManager[str]) -> dict[str, Verdicts]:
    async with server as url:
        found = await asyncio.gather(*(run_suite(url, revision) for revision in REVISIONS))
    return dict(zip(REVISIONS, found, strict=True))


def test_the_everything_server_passes_directly_except_for_listed_checks(direct: dict[str, Verdicts]) -> None:
    assert {revision: sorted(failures(verdicts)) for revision, verdicts in direct.items()} == EXPECTED


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda arrangement: arrangement.name)
async def test_what_passes_directly_passes_through(arrangement: Arrangement, direct: dict[str, Verdicts]) -> None:
    found = await verdicts_at(arrangement.through())
    lost = {
        revision: {name: why for name, why in losses(direct[revision], through).items() if arrangement.must_pass(name)}
        for revision, through in found.items()
    }
    assert lost == {revision: {} for revision in REVISIONS}
    if arrangement.must_pass("tasks-"):
        assert len(tasks_passed(found["2026-07-28"])) == len(tasks_passed(direct["2026-07-28"])) == 10


async def test_what_passes_directly_passes_through_three_gateways_behind_a_balancer(
    direct: dict[str, Verdicts],
) -> None:
    """Each request goes to the next gateway, whichever holds its session. `make conformance-replicas` has every arrangement."""
    found = await verdicts_at(through_replicas(ARRANGEMENTS[0]))
    lost = {revision: losses(direct[revision], through) for revision, through in found.items()}
    assert lost == {revision: {} for revision in REVISIONS}
    assert len(tasks_passed(found["2026-07-28"])) == len(tasks_passed(direct["2026-07-28"])) == 10


def official_ways() -> list[ParameterSet]:
    """Where a server is on standard streams, HTTP is long: that is how our own server, on the same SDK, is reached above."""
    return [
        pytest.param(
            server,
            stdio,
            id=f"{server.name} over {way}",
            marks=[pytest.mark.peers(server.peer), *([pytest.mark.long] if server.stdio and not stdio else [])],
        )
        for server in OFFICIAL
        for way, stdio in server.ways.items()
    ]


@pytest.mark.parametrize(("server", "stdio"), official_ways())
@pytest.mark.timeout(2_400)
async def test_what_the_official_server_passes_directly_it_passes_through(server: Official, stdio: bool) -> None:
    direct = await verdicts_at(server.directly())
    assert not failures(direct["2025-11-25"])
    assert len({name.split(":")[0] for name in direct["2025-11-25"]}) >= 30
    found = await verdicts_at(server.through(stdio=stdio))
    lost = {revision: server.due(losses(direct[revision], through)) for revision, through in found.items()}
    assert lost == {revision: {} for revision in REVISIONS}
