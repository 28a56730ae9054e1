"""Streams that were opened with the token of a temporary scope end with the scope."""

from __future__ import annotations

from typing import Any

import pytest
from tests.access.config_tokens import token
from tests.access.test_streams_end_with_their_credential import WITHIN_S, reason_of
from tests.virtual_time import Gateway, Upstream, virtual_time

CONFIG: dict[str, Any] = {"tokens": [token("agent")]}


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_stream_ends_when_its_temporary_scope_is_removed(generation: str) -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        request_body = {"config": {"mcp.enabled": "true"}}
        made, kept = [(await gate.operator("POST", "/api/v1/scopes", request_body)).json() for _ in range(2)]
        streams = []
        for scope in (made, kept):
            caller = await gate.caller(generation, scope=scope["scope"], token=scope["token"])
            asked = {"toolsListChanged": True} if generation == "2026" else {}
            streams.append(await caller.listen(**asked))
            assert (await streams[-1].head()).status == 200
        await gate.advance(5)
        assert (await gate.operator("DELETE", f"/api/v1/scopes/{made['scope']}")).status in (200, 204)
        await streams[0].done(WITHIN_S)
        assert reason_of(streams[0]) == "credential_revoked"
        await gate.advance(5)
        assert not streams[1].is_done, "the stream of another scope goes on"


@virtual_time
async def test_stream_ends_when_its_temporary_scope_expires() -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        request_body = {"config": {"mcp.enabled": "true"}, "lifetime_ms": 60_000}
        reply = await gate.operator("POST", "/api/v1/scopes", request_body)
        assert reply.status == 201, reply.body
        made = reply.json()
        caller = await gate.caller("2025", scope=made["scope"], token=made["token"])
        stream = await caller.listen()
        await stream.head()
        await gate.advance(50)
        assert not stream.is_done
        await gate.advance(10)
        await stream.done(WITHIN_S)
        assert reason_of(stream) in ("credential_revoked", "credential_expired")
