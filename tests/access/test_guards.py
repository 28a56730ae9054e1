"""Guards that separate callers and keep out attackers, each tested from the outside."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.governance.test_operator_identity import NoRecords, known_by
from tests.virtual_time import Call, Gateway, Upstream, settle, the_loop, virtual_time

from taskgate import clock
from taskgate.access.credentials import CredentialRefused, Credentials, Token
from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import APPROVER_ROLE, Approver
from taskgate.core.identity.access import AccessRefusal
from taskgate.dashboard.login import NO_FACTS, Login
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.evaluate import read_arguments
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.requests.request_state import LIFETIME_S, RequestStateSigner
from taskgate.gateway.shared_caches import CONFIRMED_WITHIN_S
from taskgate.gateway.wiring import gateway as wiring
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.connect import open_connection
from taskgate.mcp.http.target import Origin
from taskgate.ports.topics import SeenRevisions
from taskgate.store.operations.revisions import FindRevisions
from taskgate.store.sqlite.store import SqliteStore, open_store

TOKENS = {
    "tokens": [{"id": who, "sha256": hashlib.sha256(f"token-of-{who}".encode()).hexdigest()} for who in ("ann", "bob")]
}
TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}, "list": {}, "cancel": {}}}


def server() -> Upstream:
    notes = Upstream("2025", capabilities=TASKS)

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(1000)
        return "done"

    @notes.tool("quick")
    async def quick(call: Call) -> str:
        return "done"

    return notes


@virtual_time
async def test_a_task_is_found_by_its_own_caller_only() -> None:
    async with Gateway(TOKENS, {"notes": server()}) as gate:
        ann = await gate.caller("2025", token="token-of-ann", capabilities=TASKS)
        bob = await gate.caller("2025", token="token-of-bob", capabilities=TASKS)
        made = (await ann.call("notes__slow", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        assert (await ann.request("tasks/get", {"taskId": made})).result["taskId"] == made
        for method in ("tasks/get", "tasks/cancel"):
            assert (await bob.request(method, {"taskId": made})).error["data"]["error_type"] == "unknown_task"


@virtual_time
async def test_session_is_invalid_at_another_scope() -> None:
    scopes = {"default": {"default_servers": ["*"]}, "other": {"default_servers": ["*"]}}
    async with Gateway({"scopes": scopes}, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        ping = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        elsewhere = await gate.http("POST", "/mcp/other", ping, caller.headers).done()
        assert elsewhere.status == 404
        assert (await caller.request("tools/list")).result["tools"]


@virtual_time
async def test_session_limit_per_caller_is_enforced() -> None:
    async with Gateway({"limits": {"sessions_per_caller": 2}, **TOKENS}, {"notes": server()}) as gate:
        for _ in range(2):
            await gate.caller("2025", token="token-of-ann")
        with pytest.raises(KeyError, match="mcp-session-id"):
            await gate.caller("2025", token="token-of-ann")
        await gate.caller("2025", token="token-of-bob")


async def status_of(gate: Gateway, head: bytes) -> int:
    reader, writer = await gate.connect()
    writer.write(b"GET /ready HTTP/1.1\r\n" + head + b"\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@virtual_time
async def test_header_limits_and_single_host_are_enforced() -> None:
    async with Gateway({"limits": {"header_count": 10, "header_bytes": "8KiB"}}) as gate:
        host = f"host: 127.0.0.1:{gate.address[1]}\r\n".encode()
        assert await status_of(gate, host) == 200
        assert await status_of(gate, host + b"host: evil.test\r\n") == 400
        assert await status_of(gate, host + b"".join(b"x-%d: y\r\n" % n for n in range(9))) == 200
        assert await status_of(gate, host + b"".join(b"x-%d: y\r\n" % n for n in range(10))) == 431
        assert await status_of(gate, host + b"x: " + b"y" * 8000 + b"\r\n") == 200
        assert await status_of(gate, host + b"x: " + b"y" * 8200 + b"\r\n") == 431


@virtual_time
async def test_temporary_scope_token_is_invalid_after_expiry() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        config = {"mcp.enabled": "true", "mcp.default_server_ids": '["notes"]'}
        made = (await gate.operator("POST", "/api/v1/scopes", {"config": config, "lifetime_ms": 60_000})).json()
        digest = hashlib.sha256(made["token"].encode()).hexdigest()
        scopes = gate.life.app.gateway.console.servers.temporary_scopes
        assert scopes.scope_of_token(digest) == made["scope"]
        the_loop().leap(60)
        # No cleanup has run: no timer fires between these two lines.
        assert scopes.scope_of_token(digest) is None


@virtual_time
async def test_login_form_body_is_limited() -> None:
    async with Gateway() as gate:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await gate.http("POST", "/login", b"x=" + bytes(300_000), form).done()).status == 413


@virtual_time
async def test_resource_allowlist_applies_to_unlisted_resources() -> None:
    notes = Upstream("2025", capabilities={"resources": {}})

    async def read(call: Call) -> Any:
        return {"contents": [{"uri": call.params["uri"], "text": "found"}]}

    notes.on("resources/read", read)
    scope = {"default_servers": ["*"], "tool_allowlist": ["resource:file:///open/*"]}
    async with Gateway({"scopes": {"default": scope}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        given = await caller.request("resources/read", {"uri": "file:///open/a"})
        assert given.result["contents"][0]["text"] == "found"
        refused = await caller.request("resources/read", {"uri": "file:///closed/a"})
        assert refused.error["data"]["executed"] == "no"
        assert notes.methods["resources/read"] == 1


@virtual_time
async def test_forged_upstream_task_id_does_not_reach_the_server() -> None:
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        await caller.call("notes__quick")
        body = base64.urlsafe_b64encode(b"notes\nsomebody-elses").decode().rstrip("=")
        for mark in ("", "0" * 32):
            reply = await caller.request("tasks/get", {"taskId": f"up_{body}.{mark}"})
            assert reply.error["data"]["error_type"] == "unknown_task"
        assert notes.methods["tasks/get"] == 0


@virtual_time
async def test_no_call_is_held_or_sent_while_draining() -> None:
    notes = server()
    config = {"servers": {"notes": {"budgets": {"max_concurrency": 1}}}}
    async with Gateway(config, {"notes": notes}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = [
            (await caller.call("notes__slow", {}, task={"ttl": 600_000})).result["task"]["taskId"] for _ in range(2)
        ]
        await gate.advance(1)
        waiting = caller.begin("tasks/result", {"taskId": made[0]})
        await settle()
        began = the_loop().time()
        await gate.stop()
        assert (waiting.took or 0) < 1, "the waiting reply was held until the end of the drain"
        assert the_loop().time() > began
        assert notes.count("slow") == 1


def test_request_state_is_signed() -> None:
    signer = RequestStateSigner(b"key", clock.wall_ms)
    state = signer.sign("relay", "ann", "tools/call", "t", "notes", body="body")
    assert signer.verify(state, "ann", "tools/call", "t").body == "body"
    whole = base64.urlsafe_b64decode(state + "=" * (-len(state) % 4))
    forged = base64.urlsafe_b64encode(whole.replace(b'"body"', b'"evil"')).decode().rstrip("=")
    for text in (
        forged,
        RequestStateSigner(b"other", clock.wall_ms).sign("relay", "ann", "tools/call", "t", "notes", body="body"),
    ):
        with pytest.raises(CallerError):
            signer.verify(text, "ann", "tools/call", "t")


@pytest.mark.parametrize("who", [("bob", "tools/call", "t"), ("ann", "prompts/get", "t"), ("ann", "tools/call", "u")])
def test_request_state_is_bound_to_caller_and_call(who: tuple[str, str, str]) -> None:
    signer = RequestStateSigner(b"key", clock.wall_ms)
    with pytest.raises(CallerError):
        signer.verify(signer.sign("relay", "ann", "tools/call", "t", "notes", body="body"), *who)


@virtual_time
async def test_request_state_expires() -> None:
    signer = RequestStateSigner(b"key", clock.wall_ms)
    state = signer.sign("relay", "ann", "tools/call", "t", "notes", body="body")
    the_loop().leap(LIFETIME_S - 1)
    assert signer.verify(state, "ann", "tools/call", "t").body == "body"
    the_loop().leap(2)
    with pytest.raises(CallerError):
        signer.verify(state, "ann", "tools/call", "t")


def test_request_state_uses_the_store_clock() -> None:
    """Both gateways have the clock of the store that they share."""
    made = RequestStateSigner(b"key", lambda: 1_790_000_000_000)
    state = made.sign("relay", "ann", "tools/call", "t", "notes", body="body")
    soon = RequestStateSigner(b"key", lambda: 1_790_000_000_000 + LIFETIME_S * 1000 - 1)
    assert soon.verify(state, "ann", "tools/call", "t").body == "body"
    with pytest.raises(CallerError):
        RequestStateSigner(b"key", lambda: 1_790_000_000_000 + LIFETIME_S * 1000 + 1000).verify(
            state, "ann", "tools/call", "t"
        )


def test_argument_imitating_a_declared_one_is_refused() -> None:
    schema = {"properties": {"amount": {"type": "integer"}}}
    asked = GatedCall("ann", frozenset(), "default", "bank", "pay", b'{"Amount":500}', input_schema=schema)
    with pytest.raises(CallerError) as refused:
        read_arguments(asked)
    assert (refused.value.error_type, refused.value.executed) == ("invalid_params", "no")


@virtual_time
async def test_cookie_is_invalid_after_logout(tmp_path: Path) -> None:
    ann = Approver("ann", frozenset({APPROVER_ROLE}))
    store = open_store(tmp_path / "people.db")
    login = Login(b"secret", {"ann": ann}.get, lambda: True, store, EventHub())
    header = (await login.begin(ann, None, NO_FACTS)).decode()
    assert all(word in header for word in ("; HttpOnly", "; SameSite=Strict", "; Secure"))
    cookie = header.partition("=")[2].partition(";")[0]
    credentials = known_by(())
    known = await login.session(cookie, credentials)
    assert known is not None
    assert known.identity.principal == "ann"
    await login.end(cookie)
    assert await login.session(cookie, credentials) is None
    again = Login(b"secret", {"ann": ann}.get, lambda: True, store, EventHub())
    assert await again.session(cookie, credentials) is None
    await store.close()


@virtual_time
async def test_hostname_resolving_to_internal_address_is_refused() -> None:
    loop = the_loop()
    loop.network.name("inside.test", "10.0.0.9")
    reached: list[object] = []
    loop.network.listen(lambda: reached.append(1), ("10.0.0.9", 80))
    for host in ("inside.test", "10.0.0.9"):
        with pytest.raises(HttpFailure) as refused:
            await open_connection(
                Origin(False, host, 80, public_only=True),
                lambda: pytest.fail("connected"),
                context=None,
                until=loop.time() + 5,
            )
        assert (refused.value.stage, refused.value.executed) == (Stage.CONNECT, "no")
    assert not reached


@virtual_time
async def test_token_is_valid_until_it_expires() -> None:
    token = Token("ann", hashlib.sha256(b"token-of-ann").hexdigest(), expires=clock.wall() + 60)
    credentials = Credentials(
        (token,), None, None, None, {}, scope_of_token=lambda _digest: None, records=NoRecords(), certificates={}
    )

    def refusal_of(authorization: bytes) -> AccessRefusal:
        with pytest.raises(CredentialRefused) as refused:
            credentials.in_header(authorization)
        return refused.value.reason

    assert credentials.in_header(b"Bearer token-of-ann").identity.principal == "ann"
    assert refusal_of(b"Bearer token-of-bob") is AccessRefusal.UNKNOWN_CREDENTIAL
    with pytest.raises(CredentialRefused):
        credentials.none_shown()
    the_loop().leap(60)
    assert refusal_of(b"Bearer token-of-ann") is AccessRefusal.EXPIRED


@virtual_time
async def test_plain_calls_are_refused_while_caches_are_unconfirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shared store reports when it was last reachable; here it stops responding."""
    received = clock.monotonic()

    monkeypatch.setattr(SqliteStore, "revisions", property(lambda _store: SeenRevisions({}, received)))
    monkeypatch.setattr(wiring, "changed_elsewhere", lambda *_parts, **_more: {})
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("notes__quick")).text == "done"
        await gate.advance(CONFIRMED_WITHIN_S + 1)
        refused = (await caller.call("notes__quick")).error["data"]
        assert (refused["error_type"], refused["executed"]) == ("store_unavailable", "no")
        assert notes.count("quick") == 1
        received = clock.monotonic()
        assert (await caller.call("notes__quick")).text == "done"


@virtual_time
async def test_plain_call_continues_while_a_change_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recently confirmed caches are used while a change is pending; caches with a change unread for long are not."""
    seen = SeenRevisions({"pins": 1}, clock.monotonic())

    async def load() -> None: ...

    monkeypatch.setattr(SqliteStore, "revisions", property(lambda _store: seen))
    monkeypatch.setattr(FindRevisions, "run", lambda _query, _reader: {"pins": 1})
    monkeypatch.setattr(wiring, "changed_elsewhere", lambda *_parts, **_more: {"pins": load})
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        await gate.advance(60)
        seen = seen.then({"pins": 1}, clock.monotonic())
        await gate.advance(0.5)
        seen = seen.then({"pins": 2}, clock.monotonic())
        assert (await caller.call("notes__quick")).text == "done"
        await gate.advance(CONFIRMED_WITHIN_S)
        seen = seen.then({"pins": 2}, clock.monotonic())
        assert (await caller.call("notes__quick")).error["data"]["error_type"] == "store_unavailable"
        assert notes.count("quick") == 1


@virtual_time
async def test_task_denied_between_rounds_ends_as_partial_failure() -> None:
    notes = Upstream("2026")

    async def write(call: Call) -> str:
        text = await call.elicit("Sure?", {"type": "object", "properties": {"ok": {"type": "boolean"}}})
        return f"written {text}"

    notes.tool("write", write)
    async with Gateway({}, {"notes": notes}) as gate:
        answers = {"elicitation/create": {"action": "accept", "content": {"ok": True}}}
        caller = await gate.caller("2025", capabilities={**TASKS, "elicitation": {"form": {}}}, answers=answers)
        await caller.tools()
        task = (await caller.call("notes__write", {}, task={"ttl": 3_600_000})).result["task"]["taskId"]
        await gate.advance(5)
        assert (await caller.request("tasks/get", {"taskId": task})).result["status"] == "input_required"
        await gate.reload({"governance": {"rules": [{"match": "write", "action": "deny"}]}})
        result = caller.begin("tasks/result", {"taskId": task})
        await gate.advance(300)
        assert result.is_done
        error = result.reply.error
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("policy_drift", "maybe")
        assert notes.methods["tools/call"] == 1
