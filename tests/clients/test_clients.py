"""The SDKs among the clients of the matrix play every scene; `make clients` has all clients, and a table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.clients.client_setup import Setup, running_setup
from tests.clients.matrix import CLIENTS, Client
from tests.clients.scenarios import SCENES, Play

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.peers("mcp23")]
SDKS = [
    pytest.param(client, id=client.name, marks=pytest.mark.peers(client.peer)) for client in CLIENTS if client.in_tests
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with running_setup(tmp_path_factory.mktemp("clients")) as one:
        yield one


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("client", SDKS)
async def test_client_handles_promotion_approval_question_and_cancellation_of_a_typed_tool(
    setup: Setup, client: Client, scene: str
) -> None:
    key = f"{client.name}-{scene}".replace(" ", "-")
    await SCENES[scene](Play(client, setup, key, controls=False))


FASTMCP = [client for client in CLIENTS if client.peer == "fastmcp"]


@pytest.mark.peers("fastmcp")
@pytest.mark.parametrize("client", FASTMCP, ids=lambda client: client.name)
async def test_fastmcp_builds_the_same_data_as_directly(setup: Setup, client: Client) -> None:
    key = f"{client.name}-typed".replace(" ", "-")
    await SCENES["typed"](Play(client, setup, key, controls=False))


BRIDGED = [param for param in SDKS if param.values[0].name in ("TypeScript SDK 1.32", "mcp 1.30")]  # type: ignore[union-attr]


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene not in ("listed", "typed")])
@pytest.mark.parametrize("client", BRIDGED)
async def test_stdio_client_handles_promotion_approval_question_and_cancellation(
    setup: Setup, client: Client, scene: str
) -> None:
    key = f"{client.name}-{scene}-bridge".replace(" ", "-")
    await SCENES[scene](Play(client, setup, key, controls=False, over_stdio=True))
