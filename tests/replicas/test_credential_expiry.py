"""Streams at one gateway end when their credential is ended at another one on the same store."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.plain_http import NO_TLS
from tests.harness.raw_client import RawClient
from tests.replicas.in_process import DEADLINE_S, HeldGateway, Setup, gateways, until

TOKENS: list[Any] = [
    {"id": name, "sha256": hashlib.sha256(f"{name}-token".encode()).hexdigest(), "roles": []}
    for name in ("agent", "other")
]


@asynccontextmanager
async def a_stream(
    http: httpx2.AsyncClient, url: str, headers: dict[str, str]
) -> AsyncIterator[asyncio.Task[dict[str, Any]]]:
    """A task that ends with the stream: the data of its last event."""
    async with http.stream("GET", url, headers={"accept": "text/event-stream", **headers}) as reply:
        assert reply.status_code == 200

        async def last() -> dict[str, Any]:
            found: dict[str, Any] = {}
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    found = json.loads(line[6:])
            return found

        reading = asyncio.create_task(last())
        try:
            yield reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def opened_at(stack: AsyncExitStack, gateway: HeldGateway, token: str) -> RawClient:
    client = gateway.caller(stateless=False, headers={"authorization": f"Bearer {token}"})
    return await stack.enter_async_context(client)


async def streams(stack: AsyncExitStack, setup: Setup, token: str) -> dict[str, asyncio.Task[dict[str, Any]]]:
    """At B: of a session that is there, of one whose home is A, and of the API."""
    http = await stack.enter_async_context(httpx2.AsyncClient(timeout=DEADLINE_S, verify=NO_TLS))
    bearer = {"authorization": f"Bearer {token}"}
    here, there = await opened_at(stack, setup.b, token), await opened_at(stack, setup.a, token)
    wanted = {
        "session at B": (setup.b.url, here.headers),
        "session at A": (setup.b.url, there.headers),
        "events": (f"{setup.b.base}/api/v1/events", bearer),
    }
    return {
        name: await stack.enter_async_context(a_stream(http, url, headers)) for name, (url, headers) in wanted.items()
    }


async def test_streams_end_at_every_gateway_when_a_token_is_revoked_at_one(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), gateways(tmp_path, tokens=TOKENS) as setup, AsyncExitStack() as stack:
        ending = await streams(stack, setup, "agent-token")
        going_on = await streams(stack, setup, "other-token")
        reply = await setup.a.operator("POST", "/api/v1/tokens/revoke", {"name": "agent"})
        assert reply.status_code == 200, reply.text
        found = {name: (await reading)["error_type"] for name, reading in ending.items()}
        assert found == dict.fromkeys(ending, "credential_revoked")
        assert not any(reading.done() for reading in going_on.values())


async def test_a_page_ends_at_one_gateway_when_its_person_logs_out_at_another(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), gateways(tmp_path, tokens=TOKENS) as setup, AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=DEADLINE_S, verify=NO_TLS))
        assert setup.a.life is not None
        login = setup.a.life.dashboard.login
        form = {"token": "agent-token", "form_token": login.form_token(None)}
        reply = await http.post(f"{setup.a.base}/login", data=form)
        cookie = reply.headers["set-cookie"].split(";")[0]
        http.cookies.clear()
        page = await stack.enter_async_context(a_stream(http, f"{setup.b.base}/api/v1/events", {"cookie": cookie}))
        out = {"form_token": login.form_token(cookie.partition("=")[2])}
        done = await http.post(f"{setup.a.base}/logout", data=out, headers={"cookie": cookie})
        assert done.status_code == 303
        assert (await page)["error_type"] == "credential_revoked"


async def test_a_forwarded_request_is_authorized_again_where_it_arrives(tmp_path: Path) -> None:
    """The revocation has reached A and not yet B: what B forwards with the token is refused at A."""
    async with asyncio.timeout(DEADLINE_S), gateways(tmp_path, tokens=TOKENS) as setup, AsyncExitStack() as stack:
        client = await opened_at(stack, setup.a, "agent-token")
        client.url = setup.b.url
        assert "result" in (await client.request("ping")).reply
        assert setup.b.life is not None
        people = setup.b.life.app.gateway.console.people
        people.is_revoked = lambda _digest: False  # type: ignore[assignment]
        response = await setup.a.operator("POST", "/api/v1/tokens/revoke", {"name": "agent"})
        assert response.status_code == 200, response.text

        async def refused() -> bool:
            reply = await client.http.post(
                client.url, headers=client.headers, json={"jsonrpc": "2.0", "id": 9, "method": "ping"}
            )
            return reply.status_code == 401

        assert await until(refused)
