"""Published servers answer through Taskgate as they do directly; `make servers` has more of them, and a table."""

from __future__ import annotations

import pytest
from tests.servers.catalog import SERVERS, Server
from tests.servers.compare import differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
LIGHT = [
    pytest.param(server, id=server.name, marks=pytest.mark.peers(server.peer)) for server in SERVERS if server.in_tests
]


@pytest.mark.parametrize("server", LIGHT)
async def test_a_published_server_answers_through_the_gateway_as_it_does_directly(server: Server) -> None:
    asked, different = await differences(server)
    assert different == {}
    assert asked > len(server.calls)
