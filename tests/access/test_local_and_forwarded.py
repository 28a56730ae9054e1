"""Bridges of local users and requests from other gateways pass the same function as every other request."""

from __future__ import annotations

from typing import Any

import pytest
from tests.access.config_tokens import digest, token
from tests.virtual_time import Gateway, Upstream, virtual_time

from taskgate.access.authorize import MAX_FAILURES, AccessRefused
from taskgate.access.proof import HopProof, LocalProof
from taskgate.core.errors import CallerError
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.identity.caller import Caller
from taskgate.local_gateway import local_caller

CONFIG: dict[str, Any] = {
    "tokens": [token("agent"), token("boss", "operator")],
    "scopes": {
        "default": {"default_servers": ["*"]},
        "guarded": {"default_servers": ["*"], "require": {"groups": ["sre"]}},
    },
}
ME = LocalProof("local:me", proved=True)


def refusal(gate: Gateway, proof: Any, access: Access, scope: str = "") -> AccessRefusal | None:
    try:
        gate.life.app.authorizer.admit(proof, access, scope, anonymous=True)
    except AccessRefused as refused:
        return refused.reason
    return None


@virtual_time
async def test_a_local_user_calls_in_scopes_that_require_nothing() -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        caller = local_caller(gate.life.app, ME, None)
        assert (caller.principal, caller.roles, caller.scope) == ("local:me", frozenset(), "default")
        assert refusal(gate, ME, Access.CALL, "guarded") is AccessRefusal.LACKS_GROUP
        with pytest.raises(CallerError) as caught:
            local_caller(gate.life.app, ME, "guarded")
        assert caught.value.error_type == "scope_refused"
        with pytest.raises(CallerError, match=r"taskgate\.yaml") as caught:
            local_caller(gate.life.app, ME, "none")
        assert caught.value.error_type == "scope_refused"
        request_body = {"config": {"mcp.enabled": "true"}}
        made = (await gate.operator("POST", "/api/v1/scopes", request_body)).json()
        assert refusal(gate, ME, Access.CALL, made["scope"]) is AccessRefusal.NO_SUCH_SCOPE
        assert refusal(gate, ME, Access.SEE) is AccessRefusal.LACKS_PERMISSION


@virtual_time
async def test_an_unauthenticated_peer_is_refused_and_counted() -> None:
    async with Gateway({}, {}) as gate:
        other = LocalProof("local:other", proved=False)
        found = [refusal(gate, other, Access.LOGIN) for _ in range(MAX_FAILURES + 1)]
        assert found == [AccessRefusal.UNKNOWN_CREDENTIAL] * MAX_FAILURES + [AccessRefusal.TOO_MANY_ATTEMPTS]
        assert refusal(gate, ME, Access.LOGIN) is None, "a peer that proves who it is is not held up"


@virtual_time
async def test_a_forwarded_request_of_a_revoked_token_is_refused() -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        mine = HopProof(Caller("agent", scope="default"), digest("agent-token"))
        issued = HopProof(Caller("https://issuer#ann", scope="default"), "", issued_at=1)
        for proof in (mine, issued):
            assert refusal(gate, proof, Access.CALL, "default") is None
        for name in ("agent", "https://issuer#ann"):
            assert (await gate.operator("POST", "/api/v1/tokens/revoke", {"name": name})).status == 200
        for proof in (mine, issued):
            assert refusal(gate, proof, Access.CALL, "default") is AccessRefusal.REVOKED


@virtual_time
async def test_a_forwarded_request_stays_in_the_scope_that_it_was_authorized_for() -> None:
    """The gateway that forwarded it has compared requirements with claims that are not forwarded."""
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        proof = HopProof(Caller("https://issuer#ann", scope="guarded"))
        assert refusal(gate, proof, Access.CALL, "guarded") is None
        assert refusal(gate, proof, Access.CALL, "default") is AccessRefusal.NO_SUCH_SCOPE
        gone = HopProof(Caller("https://issuer#ann", scope="gone"))
        assert refusal(gate, gone, Access.CALL, "gone") is AccessRefusal.NO_SUCH_SCOPE
        assert gate.life.app.authorizer.admit(proof, Access.CALL, "guarded").caller is proof.caller


@virtual_time
async def test_a_cached_admission_ends_with_its_credential() -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        caller = await gate.caller("2026", token="agent-token")

        async def status() -> int:
            return (await caller.begin("tools/list").done()).status

        assert [await status(), await status()] == [200, 200]
        await gate.reload({**CONFIG, "tokens": [token("agent", scope="guarded")]})
        assert await status() == 403, "it is bound to a scope that requires a group now"
        await gate.reload({**CONFIG, "tokens": [token("agent", scope="elsewhere")], "scopes": {"elsewhere": {}}})
        assert await status() == 200
        await gate.reload(CONFIG)
        assert await status() == 200
        assert (await gate.operator("POST", "/api/v1/tokens/revoke", {"name": "agent"})).status == 200
        assert await status() == 401
