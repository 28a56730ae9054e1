"""Access to the inbox over its transports, and what a web page in a person's browser cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from tests.governance.stage import Stage, a_stage, person

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


async def log_in(stage: Stage, token: str) -> httpx2.AsyncClient:
    """The cookies of a browser that logged in with a token."""
    http = httpx2.AsyncClient()
    page = await http.get(f"{stage.gateway.base}/login")
    form = {"form_token": form_token(page.text), "token": token}
    reply = await http.post(f"{stage.gateway.base}/login", data=form)
    assert reply.status_code == 303
    return http


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


async def held(stage: Stage) -> str:
    before = {row["id"] for row in (await stage.api("GET", "/api/approvals")).json()}
    caller = await stage.stateful({"tasks": {}})
    await caller.call("s__delete_it", {"path": "x"}, task={"ttl": 60000})
    rows = await stage.open_approvals(len(before) + 1)
    return next(str(row["id"]) for row in rows if row["id"] not in before)


async def test_the_inbox_opens_to_the_operator_and_approvers_only(tmp_path: Path) -> None:
    tokens = [person("ann", "approver"), person("agent"), person("boss", "operator")]
    async with a_stage(tmp_path, tokens=tokens) as stage:
        approval_id = await held(stage)
        await the_role_matrix(stage, approval_id)
        await foreign_hosts_and_origins(stage)
        await forms_need_their_token(stage, approval_id)
        await sessions_follow_the_configuration(stage)
        await pages_are_wrapped_safely(stage)
        await large_arguments_are_not_approved_unseen(stage)


async def the_role_matrix(stage: Stage, approval_id: str) -> None:
    """Every route with every kind of credential."""
    for path in (*GUARDED, f"/api/approvals/{approval_id}", f"/approvals/{approval_id}"):
        for token, allowed in (
            (None, True),
            ("ann-token", True),
            ("agent-token", False),
            ("wrong", False),
            ("", False),
        ):
            reply = await stage.api("GET", path, token=token)
            through = reply.status_code == 200
            assert through == (allowed and path.startswith("/api")), (path, token, reply.status_code)
    for word in ("approve", "deny"):
        for token in ("agent-token", "wrong", ""):
            reply = await stage.api("POST", f"/api/approvals/{approval_id}/{word}", {}, token=token)
            assert reply.status_code in (401, 403)
    assert (await stage.api("POST", "/api/pins/accept", {}, token="ann-token")).status_code == 403
    assert len(await stage.open_approvals()) == 1


async def foreign_hosts_and_origins(stage: Stage) -> None:
    for host in FOREIGN_HOSTS:
        for path in GUARDED:
            try:
                reply = await stage.api("GET", path, headers={"host": host})
            except (httpx2.HTTPError, ValueError):
                continue
            assert reply.status_code in (400, 421), (host, path)
    for origin in ("http://evil.test", "null", "https://127.0.0.1.evil.test"):
        assert (await stage.api("GET", "/api/approvals", headers={"origin": origin})).status_code == 403


async def forms_need_their_token(stage: Stage, approval_id: str) -> None:
    """What a cross-site form, or another page of this machine, could send with the operator's cookie."""
    http = await log_in(stage, stage.operator_token)
    try:
        base = f"{stage.gateway.base}/approvals/{approval_id}"
        digest = (await stage.api("GET", f"/api/approvals/{approval_id}")).json()["arguments_digest"]
        for form in ({}, {"form_token": "x"}, {"form_token": "x", "digest": digest}):
            assert (await http.post(f"{base}/approve", data=form)).status_code == 403
        api = f"{stage.gateway.base}/api/approvals/{approval_id}/approve"
        assert (await http.post(api, json={})).status_code == 403
        assert (await http.post(api, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
        good = {"form_token": form_token((await http.get(base)).text), "digest": digest}
        cross = await http.post(f"{base}/approve", data=good, headers={"origin": "http://evil.test"})
        assert cross.status_code == 403
        stale = await http.post(f"{base}/approve", data={**good, "digest": "sha256:other"})
        assert stale.status_code == 409
        assert len(await stage.open_approvals()) == 1
        done = await http.post(f"{base}/approve", data=good, headers={"origin": stage.gateway.base})
        assert done.status_code == 303
        again = await http.post(f"{base}/deny", data=good)
        assert again.status_code == 409
    finally:
        await http.aclose()


async def sessions_follow_the_configuration(stage: Stage) -> None:
    http = await log_in(stage, "ann-token")
    try:
        assert (await http.get(f"{stage.gateway.base}/approvals")).status_code == 200
        (cookie,) = http.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
        forged = (cookie.value or "")[:-4] + "AAAA"
        reply = await stage.http.get(f"{stage.gateway.base}/approvals", headers={"cookie": f"{cookie.name}={forged}"})
        assert reply.status_code == 303
    finally:
        await http.aclose()
    page = await stage.http.get(f"{stage.gateway.base}/login")
    refused = await stage.http.post(
        f"{stage.gateway.base}/login", data={"form_token": form_token(page.text), "token": "nobodys-token"}
    )
    assert refused.status_code == 403
    agent = await log_in(stage, "agent-token")
    try:
        assert (await agent.get(f"{stage.gateway.base}/approvals")).status_code == 403
        assert (await agent.get(f"{stage.gateway.base}/api/approvals")).status_code == 403
    finally:
        await agent.aclose()


async def pages_are_wrapped_safely(stage: Stage) -> None:
    reply = await stage.http.get(f"{stage.gateway.base}/login")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    assert "<script" not in reply.text
    assert "access-control-allow-origin" not in reply.headers


async def large_arguments_are_not_approved_unseen(stage: Stage) -> None:
    caller = await stage.stateful({"tasks": {}})
    await caller.call("s__delete_it", {"path": "x" * 500_000, "z": "the payload"}, task={"ttl": 60000})
    (row,) = await stage.open_approvals()
    http = await log_in(stage, stage.operator_token)
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
    async with a_stage(tmp_path) as stage:
        approval_id = await held(stage)
        bare = await stage.approve(approval_id)
        assert (bare.status_code, bare.json()["error"]) == (403, "passphrase_needed")
        assert (await stage.approve(approval_id, passphrase="guess")).status_code == 403
        page = await stage.http.get(f"{stage.gateway.base}/login")
        form = {"form_token": form_token(page.text), "token": stage.operator_token}
        assert (await stage.http.post(f"{stage.gateway.base}/login", data=form)).status_code == 403
        known = {**form, "passphrase": "open sesame"}
        assert (await stage.http.post(f"{stage.gateway.base}/login", data=known)).status_code == 303
        assert (await stage.approve(approval_id, passphrase="open sesame")).status_code == 200
        other = await held(stage)
        for _ in range(5):
            await stage.approve(other, passphrase="guess")
        assert (await stage.approve(other, passphrase="open sesame")).status_code == 403
        assert (await stage.approve(other, token="ann-token")).status_code == 200
