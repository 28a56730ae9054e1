"""The same conversations without a gateway: the SDKs themselves pass what the suite requires of Taskgate."""

from __future__ import annotations

import pytest
from tests.conversations.behaviours import complaints, script
from tests.harness.peers import CALLERS, STATELESS, UPSTREAMS, Caller, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
PAIRS = [
    pytest.param(
        caller, upstream, id=f"{caller.name} to {upstream.name}", marks=pytest.mark.peers(caller.peer, upstream.peer)
    )
    for caller, upstream in (
        (CALLERS[0], UPSTREAMS[0]),
        (CALLERS[2], UPSTREAMS[1]),
        (CALLERS[3], UPSTREAMS[2]),
        (CALLERS[5], UPSTREAMS[3]),
    )
]


@pytest.mark.parametrize(("caller", "upstream"), PAIRS)
async def test_every_conversation_works_without_a_gateway(caller: Caller, upstream: Upstream) -> None:
    assert (caller.generation is STATELESS) == (upstream.supports is STATELESS)
    async with upstream.http() as url:
        assert complaints(await caller.play(script(), url=url)) == {}
