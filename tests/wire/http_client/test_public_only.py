"""A server that a caller added is connected to at public addresses only."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from tests.wire.http_client.raw_server import OK, answering, serving

from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """Names lead to these numbers, one answer after the other."""
    left = list(answers)

    async def getaddrinfo(_host: str, port: int, **_: Any) -> list[Any]:
        numbers = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("answers", [(["127.0.0.1"],), (["1.1.1.1", "127.0.0.1"],)])
async def test_name_with_private_address_is_not_connected(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[list[str], ...]
) -> None:
    async with serving(answering(OK, OK, OK)) as server:
        resolving(monkeypatch, *answers)
        client = HttpClient(connect_timeout_s=2)
        target = Target.parse(f"http://inside.example:{server.port}/", public_only=True)
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(target, deadline_s=5)
        assert caught.value.stage is Stage.CONNECT
        assert "private network" in str(caught.value)
        assert server.connections == 0
        await client.close()


async def test_connection_of_configured_server_is_not_shared_with_added_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(answering(OK, OK, OK)) as server:
        resolving(monkeypatch, ["127.0.0.1"])
        client = HttpClient(connect_timeout_s=2)
        url = f"http://inside.example:{server.port}/"
        await client.exchange(Target.parse(url), deadline_s=5)
        with pytest.raises(HttpFailure):
            await client.exchange(Target.parse(url, public_only=True), deadline_s=5)
        with pytest.raises(HttpFailure):
            await client.exchange(Target.parse(url, public_only=True).at("/other"), deadline_s=5)
        assert server.connections == 1
        await client.close()
