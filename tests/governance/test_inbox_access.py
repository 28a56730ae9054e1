"""Access to the inbox over its transports, and what a web page in a person's browser cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from tests.governance.approval_setup import Setup, person, running_setup

from taskgate.inbound.gateway_secrets import set_passphrase

pytestmark = pytest.mark.virtual_time

FOREIGN_HOSTS = [
    "evil.test",
    "127.0.0.1.evil.test",
    "evil.test:80@127.0.0.1",
    "localhost.evil.test",
    "127.0.0.1\t.evil",
    "[::1].evil.test",
    "",
    "0.0.0.0",
    "xn--lcalhost-9eb",
]
GUARDED = ["/api/approvals", "/api/grants", "/api/tasks", "/api/pins", "/approvals", "/grants", "/definitions", "/"]


async def log_in(setup: Setup, token: str) -> httpx2.AsyncClient:
    """The cookies of a browser that logged in with a token."""
    http = httpx2.AsyncClient()
    page = await http.get(f"{setup.gateway.base}/login")
    form = {"form_token": form_token(page.text), "token": token}
    reply = await http.post(f"{setup.gateway.base}/login", data=form)
    assert reply.status_code == 303
    return http


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


async def held(setup: Setup) -> str:
    before = {row["id"] for row in (await setup.api("GET", "/api/approvals")).json()}
    caller = await setup.stateful({"tasks": {}})
    await caller.call("s__delete_it", {"path": "x"}, task={"ttl": 60000})
    rows = await setup.open_approvals(len(before) + 1)
    return next(str(row["id"]) for row in rows if row["id"] not in before)


async def test_the_inbox_opens_to_the_operator_and_approvers_only(tmp_path: Path) -> None:
    tokens = [person("ann", "approver"), person("agent"), person("boss", "operator")]
    async with running_setup(tmp_path, tokens=tokens) as setup:
        approval_id = await held(setup)
        await the_role_matrix(setup, approval_id)
        await foreign_hosts_and_origins(setup)
        await forms_need_their_token(setup, approval_id)
        await sessions_follow_the_configuration(setup)
        await pages_are_wrapped_safely(setup)
        await large_arguments_are_not_approved_unseen(setup)


async def the_role_matrix(setup: Setup, approval_id: str) -> None:
    """Every route with every kind of credential."""
    for path in (*GUARDED, f"/api/approvals/{approval_id}", f"/approvals/{approval_id}"):
        for token, allowed in (
            (None, True),
            ("ann-token", True),
            ("agent-token", False),
            ("wrong", False),
            ("", False),
        ):
            reply = await setup.api("GET", path, token=token)
            through = reply.status_code == 200
            assert through == (allowed and path.startswith("/api")), (path, token, reply.status_code)
    for word in ("approve", "deny"):
        for token in ("agent-token", "wrong", ""):
            reply = await setup.api("POST", f"/api/approvals/{approval_id}/{word}", {}, token=token)
            assert reply.status_code in (401, 403)
    assert (await setup.api("POST", "/api/pins/accept", {}, token="ann-token")).status_code == 403
    assert len(await setup.open_approvals()) == 1


async def foreign_hosts_and_origins(setup: Setup) -> None:
    for host in FOREIGN_HOSTS:
        for path in GUARDED:
            try:
                reply = await setup.api("GET", path, headers={"host": host})
            except (httpx2.HTTPError, ValueError):
                continue
            assert reply.status_code in (400, 421), (host, path)
    for origin in ("http://evil.test", "null", "https://127.0.0.1.evil.test"):
        assert (await setup.api("GET", "/api/approvals", headers={"origin": origin})).status_code == 403


async def forms_need_their_token(setup: Setup, approval_id: str) -> None:
    """What a cross-site form, or another page of this machine, could send with the operator's cookie."""
    http = await log_in(setup, setup.operator_token)
    try:
        base = f"{setup.gateway.base}/approvals/{approval_id}"
        digest = (await setup.api("GET", f"/api/approvals/{approval_id}")).json()["arguments_digest"]
        for form in ({}, {"form_token": "x"}, {"form_token": "x", "digest": digest}):
            assert (await http.post(f"{base}/approve", data=form)).status_code == 403
        api = f"{setup.gateway.base}/api/approvals/{approval_id}/approve"
        assert (await http.post(api, json={})).status_code == 403
        assert (await http.post(api, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
        good = {"form_token": form_token((await http.get(base)).text), "digest": digest}
        cross = await http.post(f"{base}/approve", data=good, headers={"origin": "http://evil.test"})
        assert cross.status_code == 403
        stale = await http.post(f"{base}/approve", data={**good, "digest": "sha256:other"})
        assert stale.status_code == 409
        assert len(await setup.open_approvals()) == 1
        done = await http.post(f"{base}/approve", data=good, headers={"origin": setup.gateway.base})
        assert done.status_code == 303
        again = await http.post(f"{base}/deny", data=good)
        assert again.status_code == 409
    finally:
        await http.aclose()


async def sessions_follow_the_configuration(setup: Setup) -> None:
    http = await log_in(setup, "ann-token")
    try:
        assert (await http.get(f"{setup.gateway.base}/approvals")).status_code == 200
        (cookie,) = http.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
        forged = (cookie.value or "")[:-4] + "AAAA"
        reply = await setup.http.get(f"{setup.gateway.base}/approvals", headers={"cookie": f"{cookie.name}={forged}"})
        assert reply.status_code == 303
    finally:
        await http.aclose()
    page = await setup.http.get(f"{setup.gateway.base}/login")
    refused = await setup.http.post(
        f"{setup.gateway.base}/login", data={"form_token": form_token(page.text), "token": "nobodys-token"}
    )
    assert refused.status_code == 403
    agent = await log_in(setup, "agent-token")
    try:
        assert (await agent.get(f"{setup.gateway.base}/approvals")).status_code == 403
        assert (await agent.get(f"{setup.gateway.base}/api/approvals")).status_code == 403
    finally:
        await agent.aclose()


async def pages_are_wrapped_safely(setup: Setup) -> None:
    reply = await setup.http.get(f"{setup.gateway.base}/login")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    assert "<script" not in reply.text
    assert "access-control-allow-origin" not in reply.headers


async def large_arguments_are_not_approved_unseen(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    await caller.call("s__delete_it", {"path": "x" * 500_000, "z": "the payload"}, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    http = await log_in(setup, setup.operator_token)
    try:
        first = (await http.get(row["url"])).text
        assert "the payload" not in arguments_on(first)
        assert '?full=1"' in first
        assert 'class="approve"' not in first
        full = (await http.get(f"{row['url']}?full=1")).text
        assert "the payload" in arguments_on(full)
        assert 'class="approve"' in full
    finally:
        await http.aclose()


def arguments_on(page: str) -> str:
    return page.partition('<pre class="arguments"')[2].partition("</pre>")[0]


async def test_with_a_passphrase_the_token_alone_approves_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    set_passphrase(tmp_path / "state", "open sesame")
    async with running_setup(tmp_path) as setup:
        approval_id = await held(setup)
        bare = await setup.approve(approval_id)
        assert (bare.status_code, bare.json()["error"]) == (403, "passphrase_needed")
        assert (await setup.approve(approval_id, passphrase="guess")).status_code == 403
        page = await setup.http.get(f"{setup.gateway.base}/login")
        form = {"form_token": form_token(page.text), "token": setup.operator_token}
        assert (await setup.http.post(f"{setup.gateway.base}/login", data=form)).status_code == 403
        known = {**form, "passphrase": "open sesame"}
        assert (await setup.http.post(f"{setup.gateway.base}/login", data=known)).status_code == 303
        assert (await setup.approve(approval_id, passphrase="open sesame")).status_code == 200
        other = await held(setup)
        for _ in range(5):
            await setup.approve(other, passphrase="guess")
        assert (await setup.approve(other, passphrase="open sesame")).status_code == 403
        assert (await setup.approve(other, token="ann-token")).status_code == 200
