"""Addresses that servers announce are limited in length before they are read: Python normalizes the host in quadratic time."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness.cpu_time import least_cpu

from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.oauth_discovery import DiscoveryFailed, authorization_server, check_resource, strings
from taskgate.mcp.sse import SseEvent
from taskgate.ports.call_failure import CallFailed
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.old_sse_wire import OldSseWire
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets

LONG = "https://a" + "\u0301\u0316" * 8_000 + ".example/"
"""Reading it takes 170 ms, and one of a megabyte minutes."""
ENDPOINTS = {
    "authorization_endpoint": "https://i.example/authorize",
    "token_endpoint": "https://i.example/token",
    "code_challenge_methods_supported": ["S256"],
}


def test_metadata_of_a_resource_with_a_long_name_is_refused_unread() -> None:
    def check() -> None:
        with pytest.raises(DiscoveryFailed, match="characters"):
            check_resource("https://a.example/mcp", LONG)

    assert least_cpu(check) < 0.02


def test_long_issuers_and_endpoints_are_not_used() -> None:
    assert strings([LONG, "https://i.example"]) == ("https://i.example",)
    server = authorization_server("https://i.example", {**ENDPOINTS, "registration_endpoint": LONG})
    assert server.registration_endpoint is None
    for name in ("authorization_endpoint", "token_endpoint"):
        with pytest.raises(DiscoveryFailed, match=name):
            authorization_server("https://i.example", {**ENDPOINTS, name: LONG})


async def test_long_address_of_an_old_server_is_refused() -> None:
    client = HttpClient()
    wire = OldSseWire(
        "server", client, "http://127.0.0.1:1/sse", {}, Intake(), secret_filter=SecretFilter(ServerSecrets(()))
    )
    wire._post_target = asyncio.get_running_loop().create_future()
    wire._on_event(SseEvent(LONG.encode(), "endpoint"))
    with pytest.raises(CallFailed, match="too long"):
        await wire._post_target
    await client.close()
