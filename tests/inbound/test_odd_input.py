"""Odd input gets a clear answer and never a 500: headers, cursors, ids, query strings, addresses that lead nowhere."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from tests.governance.approval_setup import person
from tests.virtual_time import Call, Gateway, Reply, Upstream, virtual_time
from tests.virtual_time.http11 import request_bytes

from taskgate.inbound.http import post_handler

ODD = (
    "", "0", "-1", "²", "٣", "1" * 400, "9" * 19, "99999999999999999999:x", "²:x", ":", "::", "null", "true", "[]", "{}",
    "\u202e", "\u200b", "../..", "%00", "a" * 5000, "1e400", "NaN", " ", "\x7f", "tg_" + "0" * 26, "ap_" + "0" * 26, "ÿ",
)  # fmt: skip


def _upstream() -> Upstream:
    made = Upstream("2025")

    @made.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "done"

    return made


async def _asked(gate: Gateway, method: str, path: str, headers: Mapping[str, str], body: Any = None) -> Reply:
    return await gate.http(method, path, body, headers).done()


def _header(word: str) -> str:
    """In the form that a header can contain: in Latin-1, without line ends."""
    return word.encode("latin-1", "replace").decode("latin-1").replace("\x7f", "")


@virtual_time
async def test_no_header_of_a_caller_breaks_the_gateway() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        caller = await gate.caller("2025")
        session = {name: value for name, value in caller.headers.items() if name.startswith("mcp-")}
        names = ("last-event-id", "mcp-session-id", "mcp-protocol-version", "accept", "content-type", "authorization",
                 "idempotency-key", "x-taskgate-servers", "x-taskgate-tools", "origin", "traceparent", "cookie")  # fmt: skip
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for name, word in itertools.product(names, (*ODD, "g.²", "g." + "9" * 30, "g.-1", "s1.1", ".")):
            sent = {"accept": "application/json, text/event-stream", **session, name: _header(word)}
            for method in ("POST", "GET"):
                exchange = gate.http(method, "/mcp", ping if method == "POST" else None, sent)
                reply = await exchange.head() if method == "GET" else await exchange.done()
                assert reply.status < 500, (method, name, word)
                await exchange.disconnect()
        assert [line for line in gate.log if line.level == "error"] == []


@virtual_time
async def test_no_cursor_id_or_query_breaks_the_pages_and_the_api() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        bearer = {"authorization": f"Bearer {gate.operator_token}"}
        login = await gate.operator("POST", "/api/login-links", {})
        assert login.status == 200
        for word in ODD:
            quoted = quote(word, safe="")
            for path in (
                f"/api/approvals?after={quoted}", f"/api/approvals?limit={quoted}&all={quoted}", f"/api/approvals/{quoted}",
                f"/api/tasks?after={quoted}&limit={quoted}", f"/api/tasks/{quoted}", f"/api/tasks/{quoted}/events",
                f"/api/waterfall?limit={quoted}", f"/api/grants?all={quoted}", f"/approvals?after={quoted}", f"/{quoted}",
                f"/approvals/{quoted}", f"/login?next={quoted}", f"/elicitations/{quoted}", f"/api/{quoted}", f"/mcp/{quoted}",
                f"/mcp?servers={quoted}", f"/mcp?tools={quoted}", f"/.well-known/{quoted}",
            ):  # fmt: skip
                reply = await _asked(gate, "GET", path, bearer)
                assert reply.status < 500, path
            for path in (f"/api/approvals/{quoted}/approve", f"/api/grants/{quoted}/revoke", f"/api/questions/{quoted}",
                         f"/api/approvals/callback/{quoted}/{quoted}", f"/{quoted}"):  # fmt: skip
                reply = await _asked(gate, "POST", path, bearer, {})
                assert reply.status < 500, path
        assert [line for line in gate.log if line.level == "error"] == []


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_no_parameter_of_a_method_breaks_the_gateway(generation: str) -> None:
    values: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, [], {}, *ODD)
    chance = random.Random(7)
    async with Gateway({}, {"a": _upstream()}) as gate:
        caller = await gate.caller(generation, capabilities={"tasks": {}} if generation == "2025" else {})
        for method, keys in {
            "tasks/list": ("cursor", "limit"), "tasks/get": ("taskId",), "tasks/cancel": ("taskId", "reason"),
            "tasks/result": ("taskId",), "tools/list": ("cursor",), "prompts/list": ("cursor",),
            "resources/read": ("uri",), "resources/subscribe": ("uri",), "tools/call": ("name", "arguments", "task"),
            "completion/complete": ("ref", "argument"), "logging/setLevel": ("level",),
        }.items():  # fmt: skip
            for value in values:
                params = {key: value if chance.random() < 0.7 else chance.choice(values) for key in keys}
                reply = await caller.request(method, params)
                assert reply.status < 500, (method, params)
                assert b'"internal"' not in reply.body, (method, params)


NOT_UTF8 = (
    b'{"jsonrpc":"2.0","id":1,"method":"too\xf6ls/list","params":{}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"\xf6":1}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__slow","arguments":{"\xed\xa0\x80":"\xff"}}}',
    b'{"\xf6":"2.0"}',
    b"\xff\xfe{}",
)


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("larger_by", [0, 20_000])
async def test_a_body_that_is_not_utf8_is_refused_at_once(generation: str, larger_by: int) -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        headers = (await gate.caller(generation)).headers
        for body in NOT_UTF8:
            reply = await gate.http("POST", "/mcp", body + b" " * larger_by, headers).done()
            assert reply.status == 400, body
            assert b"not UTF-8" in reply.body
            assert reply.json()["error"]["data"]["executed"] == "no"
        assert [line for line in gate.log if line.level == "error"] == []


@virtual_time
async def test_a_request_is_answered_if_its_refusal_has_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: bytes) -> bytes:
        raise LookupError("a bug")

    monkeypatch.setattr(post_handler, "without_unproved_executed", broken)
    async with Gateway({}, {"a": _upstream()}) as gate:
        reply = await gate.http("POST", "/mcp", b"no JSON", (await gate.caller("2025")).headers).done()
        assert reply.status == 500


@virtual_time
async def test_a_post_to_a_wrong_path_gets_the_mcp_path() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        for path in ("/", "/sse", "/messages", "/mpc", "/v1/mcp", "/register", "/approvals", "/login"):
            reply = await _asked(gate, "POST", path, {}, {"jsonrpc": "2.0", "id": 1, "method": "initialize"})
            assert (reply.status, reply.headers["content-type"]) == (404, "application/json"), path
            assert "/mcp" in reply.json()["error"]
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server/mcp"):
            assert (await _asked(gate, "GET", path, {})).status == 404
        assert (await _asked(gate, "GET", "/approvals", {})).status == 303


@virtual_time
async def test_a_cancelled_post_ends_as_an_empty_stream() -> None:
    """A request is answered by JSON or a stream; a cancelled one gets no response, so its stream has no event."""
    async with Gateway({}, {"a": _upstream()}) as gate:
        caller = await gate.caller("2025")
        params = {"name": "a__slow", "arguments": {}}
        call = caller.post({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params})
        await gate.advance(0.5)
        await caller.notify("notifications/cancelled", {"requestId": 77})
        reply = await call.done()
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "text/event-stream", b"")


@virtual_time
async def test_a_stateless_call_of_a_caller_who_has_left_is_not_sent() -> None:
    """The caller disconnects while its large request is read in turns."""
    upstream = _upstream()
    async with Gateway({}, {"a": upstream}) as gate:
        caller = await gate.caller("2026")
        sent = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "a__slow"}
        headers = {**caller.headers, "accept": "application/json", "content-type": "application/json", **sent}
        declared = {
            "protocolVersion": "2026-07-28",
            "clientCapabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        meta = {f"io.modelcontextprotocol/{name}": value for name, value in declared.items()}
        params = {"name": "a__slow", "arguments": {"numbers": list(range(20_000))}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        for leaves, count in ((False, 1), (True, 1)):
            _, writer = await gate.connect()
            writer.write(request_bytes("POST", "/mcp", headers, body))
            if leaves:
                writer.transport.abort()
            await gate.advance(1)
            assert upstream.count("slow") == count
            writer.close()


@virtual_time
async def test_a_logout_invalidates_the_cookie_in_every_browser() -> None:
    async with Gateway({"tokens": [person("ann", "approver")]}) as gate:
        page = await _asked(gate, "GET", "/login", {})
        form = page.body.decode().partition('name="form_token" value="')[2].partition('"')[0]
        kind = {"content-type": "application/x-www-form-urlencoded"}
        sent = f"form_token={quote(form)}&token=ann-token".encode()
        came = await gate.http("POST", "/login", sent, kind).done()
        cookie = {"cookie": came.headers["set-cookie"].partition(";")[0]}
        inside = await _asked(gate, "GET", "/approvals", cookie)
        assert inside.status == 200
        form = inside.body.decode().partition('name="form_token" value="')[2].partition('"')[0]
        gone = await gate.http("POST", "/logout", f"form_token={quote(form)}".encode(), {**kind, **cookie}).done()
        assert gone.status == 303
        assert (await _asked(gate, "GET", "/approvals", cookie)).status == 303
        assert (await _asked(gate, "GET", "/api/approvals", cookie)).status == 401
        await gate.restart()
        assert (await _asked(gate, "GET", "/approvals", cookie)).status == 303


@virtual_time
@pytest.mark.parametrize("last", [b"g.\xb2", b"g." + b"9" * 5000, b"g.-1", b".", b"\xff.\xb3"])
async def test_an_event_id_that_was_never_given_out_is_refused(last: bytes) -> None:
    """Bytes by hand: a superscript two is a digit to Python in Latin-1, and no number."""
    async with Gateway({}, {"a": _upstream()}) as gate:
        caller = await gate.caller("2025")
        reader, writer = await gate.connect()
        lines = [b"GET /mcp HTTP/1.1", b"Host: 127.0.0.1", b"Accept: text/event-stream", b"Last-Event-ID: " + last]
        lines += [f"{name}: {value}".encode() for name, value in caller.headers.items() if name.startswith("mcp-")]
        writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
