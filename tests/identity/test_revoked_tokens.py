"""A token that was revoked opens nothing any more, here at once and after a restart; tokens of an issuer that are newer do."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.identity.issuer import an_issuer
from tests.virtual_time import Gateway, Upstream, virtual_time

from taskgate.store.operations.audit import AuditRows


def token(name: str, *roles: str) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(f"{name}-token".encode()).hexdigest(), "roles": list(roles)}


async def api(gate: Gateway, who: str, method: str, path: str, text: Any = None) -> Any:
    headers = {"authorization": f"Bearer {who}", "content-type": "application/json"}
    return await gate.http(method, path, text, headers).done()


async def opens(gate: Gateway, bearer: str) -> bool:
    headers = {"authorization": f"Bearer {bearer}", "accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    reply = await gate.http("POST", "/mcp", body, {**headers, "content-type": "application/json"}).done()
    return reply.status not in (401, 403)


@virtual_time
async def test_a_revoked_token_is_refused_at_once_and_after_a_restart() -> None:
    config = {"tokens": [token("agent"), token("root", "admin"), token("boss", "operator")]}
    async with Gateway(config, {"s": Upstream("2025")}) as gate:
        assert await opens(gate, "agent-token")
        revoke = "/api/v1/tokens/revoke"
        assert (await api(gate, "boss-token", "POST", revoke, {"name": "agent"})).status == 403
        assert (await api(gate, "root-token", "POST", revoke, {"name": "nobody"})).status == 404
        assert (await api(gate, "root-token", "POST", revoke, {"name": "https://a#\0"})).status == 404
        assert (await api(gate, "root-token", "POST", "/api/v1/data/erase", {"principal": "a\0"})).status == 400
        assert (await api(gate, "root-token", "POST", revoke, {"name": "agent", "reason": "lost"})).status == 200
        assert not await opens(gate, "agent-token")
        await gate.restart()
        assert not await opens(gate, "agent-token")
        rows = (await api(gate, "root-token", "GET", "/api/v1/tokens")).json()["tokens"]
        (row,) = [row for row in rows if row["id"] == "agent"]
        assert (row["revoked_by"], row["reason"]) == ("root", "lost")
        assert "sha256" not in str(rows)
        events = [row.entry.event for row in await gate.life.app.store.ask(AuditRows(0, 100))]
        assert "token_revoked" in events


@virtual_time
async def test_tokens_of_a_subject_that_were_issued_before_are_refused_and_later_ones_are_not() -> None:
    async with an_issuer() as issuer:
        jwt = {"issuer": issuer.url, "audiences": ["gate"], "roles": {"admin": ["root"]}}
        async with Gateway({"auth": {"jwt": [jwt]}}, {"s": Upstream("2025")}) as gate:
            old = issuer.token()
            assert await opens(gate, old)
            subject = f"{issuer.url}#ann"
            assert (await gate.operator("POST", "/api/v1/tokens/revoke", {"name": subject})).status == 200
            assert not await opens(gate, old)
            await gate.advance(5)
            assert await opens(gate, issuer.token())
            assert not await opens(gate, old)
