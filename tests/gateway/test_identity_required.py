"""With tokens configured every request needs one, and nothing is exposed without authentication by accident."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.bare import Bare, initialize
from tests.governance.approval_setup import person, running_setup
from tests.harness.commands import command
from tests.harness.gateway import running_gateway
from tests.harness.raised import raises_problem
from tests.virtual_time import Gateway

from taskgate.access.arrival import arrived_on_loopback
from taskgate.access.credentials import CredentialRefused
from taskgate.access.guard import Guard
from taskgate.assembly.exposure import check_exposure, is_reachable_without_login
from taskgate.assembly.open_app import open_app
from taskgate.config.load import load, load_text
from taskgate.lifecycle.lifecycle import Lifecycle
from taskgate.local_gateway import NoExtraEndpoint

pytestmark = pytest.mark.virtual_time

DEMO = {"command": "python", "args": ["-m", "taskgate.demo.files"]}
AGENT = person("agent")
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": DEMO},
    "scopes": {"default": {"default_servers": ["*"]}, "public": {"default_servers": ["*"]}},
}


async def test_a_request_without_a_token_is_challenged_as_soon_as_one_is_configured() -> None:
    async with running_gateway({**CONFIG, "tokens": [AGENT]}) as gateway:
        for path in ("/mcp", "/mcp/public"):
            for method in ("POST", "GET", "DELETE"):
                reply = await Bare(gateway.port).ask(method, path, initialize() if method == "POST" else b"")
                assert reply.status == 401, (path, method)
                assert reply.headers["www-authenticate"] == 'Bearer realm="taskgate"'
        wrong = await Bare(gateway.port).ask("POST", "/mcp", initialize(), authorization="Bearer guess")
        assert (wrong.status, wrong.headers["www-authenticate"]) == (
            401,
            'Bearer realm="taskgate", error="invalid_token"',
        )
        basic = await Bare(gateway.port).ask("POST", "/mcp", initialize(), authorization="Basic YTpi")
        assert basic.status == 401
        known = await Bare(gateway.port).ask("POST", "/mcp", initialize(), authorization="Bearer agent-token")
        assert known.status == 200


async def test_one_scope_may_be_opened_to_anonymous_callers_and_only_that_one() -> None:
    async with running_gateway({**CONFIG, "tokens": [AGENT], "auth": {"anonymous": "public"}}) as gateway:
        for path, status in (("/mcp/public", 200), ("/mcp", 200), ("/mcp/default", 401), ("/mcp/none", 401)):
            reply = await Bare(gateway.port).ask("POST", path, initialize())
            assert reply.status == status, path
        wrong = await Bare(gateway.port).ask("POST", "/mcp/public", initialize(), authorization="Bearer guess")
        assert wrong.status == 401


async def test_a_token_for_decisions_only_cannot_call_tools() -> None:
    async with running_gateway({**CONFIG, "tokens": [person("ann", "approver")]}) as gateway:
        reply = await Bare(gateway.port).ask("POST", "/mcp", initialize(), authorization="Bearer ann-token")
        assert reply.status == 403
        assert "may not call" in json.loads(reply.body)["error"]["message"]


async def test_an_anonymous_call_cannot_be_approved_with_a_token_that_can_call(tmp_path: Path) -> None:
    tokens = [{**person("ann", "approver"), "may_call": True}, person("bob", "approver")]
    async with running_setup(tmp_path, tokens=tokens) as setup:
        for decider, status in (("ann-token", 403), ("bob-token", 200)):
            waiting = asyncio.create_task((await setup.stateful()).call("s__delete_it", {"path": decider}))
            (row,) = await setup.open_approvals()
            reply = await setup.approve(row["id"], token=decider)
            assert reply.status_code == status
            if status == 403:
                assert reply.json()["error"] == "own_call"
                # The operator's own token belongs to another principal.
                assert (await setup.approve(row["id"])).status_code == 200
            assert "result" in await asyncio.wait_for(waiting, 30)


@pytest.mark.real_processes
@pytest.mark.parametrize("word", ["serve", "check"])
async def test_a_gateway_beyond_loopback_without_identity_does_not_start(tmp_path: Path, word: str) -> None:
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps({**CONFIG, "listen": {"host": "0.0.0.0", "port": 0}}))
    code, _, output = await command(word, "-c", str(file), env={"TASKGATE_STATE_DIR": str(tmp_path)})
    assert code == 2
    assert output.count("\n") == 1
    assert "0.0.0.0 is reachable from other machines" in output
    assert "`taskgate tokens new NAME`" in output
    assert "`auth: none`" in output


async def test_auth_none_starts_with_a_warning(tmp_path: Path) -> None:
    loaded = load_text(json.dumps({**CONFIG, "auth": "none"}), environment={})
    check_exposure(loaded.root, "0.0.0.0")
    assert is_reachable_without_login(loaded.root, "0.0.0.0")
    assert not is_reachable_without_login(loaded.root, "127.0.0.1")
    for host in ("127.0.0.1", "localhost", "::1"):
        check_exposure(load_text(json.dumps(CONFIG), environment={}).root, host)
    with raises_problem("auth", "`tokens`"):
        load_text(json.dumps({**CONFIG, "auth": "none", "tokens": [AGENT]}), environment={})


async def test_a_reload_does_not_remove_authentication_of_an_exposed_gateway(tmp_path: Path) -> None:
    """Nothing listens here: what a reload decides does not depend on the open port."""
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps({**CONFIG, "tokens": [AGENT], "store": {"url": "sqlite:///./t.db"}}))
    life = Lifecycle(
        open_app(load(file, {"TASKGATE_STATE_DIR": str(tmp_path)})), "0.0.0.0", NoExtraEndpoint, when_lost=lambda: None
    )
    try:
        file.write_text(json.dumps({**CONFIG, "store": {"url": "sqlite:///./t.db"}}))
        await life.reload()
        with pytest.raises(CredentialRefused):
            life.app.authorizer.credentials.none_shown()
        file.write_text(json.dumps({**CONFIG, "auth": "none", "store": {"url": "sqlite:///./t.db"}}))
        await life.reload()
        assert life.app.authorizer.credentials.none_shown().identity.anonymous
    finally:
        await life.close()


@pytest.mark.parametrize("open_to_all", [True, False])
@pytest.mark.parametrize(
    "sockname, near",
    [
        (("127.0.0.1", 7467), True),
        (("127.9.9.9", 7467), True),
        (("::1", 7467, 0, 0), True),
        (("::ffff:127.0.0.1", 7467, 0, 0), True),
        ("/run/taskgate.sock", True),
        ("", True),
        (("192.0.2.7", 7467), False),
        (("::ffff:192.0.2.7", 7467, 0, 0), False),
        (("fe80::1%eth0", 7467, 0, 2), False),
    ],
)
def test_the_host_localhost_is_accepted_on_loopback_only(sockname: Any, near: bool, open_to_all: bool) -> None:
    """Without identity the Host header is the only guard: a remote caller must not be able to use localhost."""
    guard = Guard(["gate.example"], [], open_to_all)
    arrived = arrived_on_loopback(sockname)
    believed = near or not open_to_all
    for host in (b"localhost", b"localhost:7467", b"127.0.0.1:7467", b"[::1]:7467"):
        assert guard.refuses({b"host": host}, arrived) == (None if believed else 421)
    for host in (b"gate.example", b"GATE.example:80"):
        assert guard.refuses({b"host": host}, arrived) is None
    origin = {b"host": b"gate.example", b"origin": b"http://localhost:1234"}
    assert guard.refuses(origin, arrived) == (None if believed else 403)
    for host in (b"evil.example", b"localhost.evil.example", b"localhost:\xb2", b""):
        assert guard.refuses({b"host": host}, arrived) == 421


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"])
@pytest.mark.parametrize(
    ("config", "status"),
    [({}, 421), ({"allowed_hosts": ["127.0.0.1"]}, 200), ({"tokens": [AGENT]}, 200)],
    ids=["open", "host allowed", "with tokens"],
)
async def test_what_a_proxy_forwards_is_not_from_this_machine(header: str, config: dict[str, Any], status: int) -> None:
    """For any proxy on this machine, and also after a request whose admission is remembered."""
    sent = {"accept": "application/json, text/event-stream"}
    if "tokens" in config:
        sent["authorization"] = "Bearer agent-token"
    async with Gateway(config, {}) as gate:
        for method, path, body in (("POST", "/mcp", initialize()), ("GET", "/ready", None)):
            assert (await gate.http(method, path, body, sent).done()).status == 200
            assert (await gate.http(method, path, body, {**sent, header: "192.0.2.9"}).done()).status == status


@pytest.mark.parametrize("open_to_all", [True, False])
@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:1234", True),
        ("https://localhost", True),
        ("HTTPS://127.0.0.1:8443/", True),
        ("ftp://localhost", False),
        ("file://localhost", False),
        ("ws://localhost", False),
        ("chrome-extension://localhost", False),
        ("javascript://localhost", False),
        ("//localhost", False),
        ("localhost", False),
        ("null", False),
    ],
)
def test_an_origin_is_a_web_page_of_an_allowed_host(origin: str, allowed: bool, open_to_all: bool) -> None:
    """Pages of a browser's extensions and of local files have origins with other schemes, and any host that they choose."""
    guard = Guard([], [], open_to_all)
    sent = {b"host": b"localhost", b"origin": origin.encode()}
    assert guard.refuses(sent, on_loopback=True) == (None if allowed else 403)
    assert Guard([], [origin], open_to_all).refuses(sent, on_loopback=True) is None, "the operator may name it"


async def test_ready_and_metrics_check_the_host_and_health_does_not() -> None:
    async with running_gateway(CONFIG) as gateway:
        for path, status in (("/ready", 421), ("/metrics", 421), ("/approvals", 421), ("/health", 200)):
            assert (await Bare(gateway.port).ask("GET", path, host="evil.example")).status == status, path
        for path in ("/ready", "/metrics", "/health"):
            assert (await Bare(gateway.port).ask("GET", path, host="localhost")).status == 200, path
