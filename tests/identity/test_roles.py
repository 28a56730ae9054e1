"""Every route of the API and every page, for every role: exactly what the table of permissions allows."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.identity.roles import Permission, allows

ROLES = ("viewer", "approver", "operator", "admin", "sre")


def token(role: str) -> dict[str, Any]:
    return {"id": f"the-{role}", "sha256": hashlib.sha256(f"{role}-token".encode()).hexdigest(), "roles": [role]}


def people(**more: Any) -> dict[str, Any]:
    return {"tokens": [token(role) for role in ROLES], **more}


def upstream() -> Upstream:
    server = Upstream("2025")

    @server.tool("pay")
    async def pay(call: Call) -> str:
        return "paid"

    return server


async def status(gate: Gateway, method: str, path: str, role: str) -> int:
    headers = {"authorization": f"Bearer {role}-token", "content-type": "application/json"}
    body: dict[str, Any] | None = {} if method == "POST" else None
    return (await gate.http(method, path, body, headers).done()).status


@pytest.mark.parametrize("role", ROLES)
@virtual_time
async def test_every_route_of_the_api_opens_to_the_roles_that_it_needs(role: str) -> None:
    async with Gateway(people(), {"s": upstream()}) as gate:
        routes = [route for route in gate.life.dashboard.api.table.routes if not route.stream]
        assert len(routes) > 20
        for route in routes:
            versioned = re.sub(r"{\w+}", "none", route.path)
            older = versioned.replace("/api/v1/", "/api/") if route.method != "DELETE" else versioned
            for path in {versioned, older}:
                found = await status(gate, route.method, path, role)
                if path == "/api/tasks":
                    assert (found != 403) == allows({role}, Permission.SEE)
                    continue
                needed = route.access.permission
                assert (found != 403) == (needed is None or allows({role}, needed)), (
                    route.method,
                    path,
                    found,
                )


@virtual_time
async def test_pages_require_the_permissions_of_their_routes() -> None:
    async with Gateway(people(), {"s": upstream()}) as gate:
        pages = gate.life.dashboard._pages
        needs = {(route.method, route.path): route.access.permission for route in pages.table.routes}
        assert needs["POST", "/approvals/{id}/approve"] is Permission.DECIDE
        assert needs["POST", "/definitions/accept"] is Permission.ACT
        assert all(
            needs["GET", path] is Permission.SEE for path in ("/approvals", "/grants", "/definitions", "/waterfall")
        )


@virtual_time
async def test_one_person_with_two_tokens_is_one_vote_and_no_second_person() -> None:
    config = people(
        governance={"rules": [{"match": "pay", "action": "approve", "approval": "money"}]},
        approval={"money": {"approvals_needed": 2, "approvers": ["group:fin"]}},
        people={"ann": ["ann", "ann-phone"], "bob": ["bob", "bob-bot"]},
    )
    names = ("ann", "ann-phone", "bob", "bob-bot", "cleo")
    config["tokens"] += [{**token(name), "id": name, "roles": ["approver", "fin"]} for name in names]
    async with Gateway(config, {"s": upstream()}) as gate:
        caller = await gate.caller("2025", token="bob-bot-token")
        calling = caller.begin_call("s__pay")
        await gate.advance(1)

        async def api(who: str, method: str, path: str, received: dict[str, Any] | None = None) -> Any:
            headers = {"authorization": f"Bearer {who}-token", "content-type": "application/json"}
            return await gate.http(method, path, received, headers).done()

        (row,) = (await api("viewer", "GET", "/api/approvals")).json()
        approve = f"/api/approvals/{row['id']}/approve"
        assert (await api("viewer", "POST", approve, {})).status == 403
        assert (await api("approver", "POST", approve, {})).json()["error"] == "not_an_approver"
        assert (await api("bob", "POST", approve, {})).json()["error"] == "own_call"
        assert (await api("ann", "POST", approve, {})).status == 200
        assert (await api("ann-phone", "POST", approve, {})).json()["error"] == "already_voted"
        assert (await api("cleo", "POST", approve, {})).json()["state"] == "approved"
        assert (await calling.done()).text == "paid"
