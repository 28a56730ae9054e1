"""OAuth logins: what is accepted, which scopes are requested, and a whole login in which the test acts as the browser.

The official suite's `auth/*` scenarios (tests/conformance) exercise the flow against real authorization servers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from taskgate.client import LoginFailed, Unauthorized, connect
from taskgate.client.oauth import browser_login
from taskgate.client.oauth.discovery import Authority
from taskgate.client.oauth.fetcher import Fetcher, may_be_opened
from taskgate.client.oauth.login import read_code, scope_to_request
from taskgate.mcp.oauth_challenge import Challenge

pytestmark = pytest.mark.timeout(30)


def authority(**changes: Any) -> Authority:
    known: dict[str, Any] = {
        "issuer": "https://as.test",
        "resource": "https://mcp.test/mcp",
        "authorization_endpoint": "https://as.test/authorize",
        "token_endpoint": "https://as.test/token",
        "registration_endpoint": None,
        "resource_scopes": None,
        "own_scopes": (),
        "auth_methods": (),
        "takes_metadata_urls": False,
        "sends_issuer": False,
    }
    return Authority(**(known | changes))


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Bearer resource_metadata="https://a/x", scope="a b"', Challenge("https://a/x", "a b", None)),
        ("bearer error=insufficient_scope,scope=a", Challenge(None, "a", "insufficient_scope")),
        ('Basic realm="x"', Challenge()),
        ("", Challenge()),
    ],
)
def test_a_challenge_is_parsed_in_every_spelling(header: str, challenge: Challenge) -> None:
    assert Challenge.from_header(header) == challenge


@pytest.mark.parametrize(
    ("challenge", "resource_scopes", "own_scopes", "granted", "scope"),
    [
        (Challenge(scope="a b"), ("c",), (), None, "a b"),
        (Challenge(), ("c", "d"), (), None, "c d"),
        (Challenge(), None, ("c",), None, None),
        (Challenge(), (), (), None, None),
        (Challenge(scope="b", error="insufficient_scope"), None, (), "a b", "a b"),
        (Challenge(scope="a"), None, ("a", "offline_access"), None, "a offline_access"),
    ],
)
def test_the_requested_oauth_scope_is_derived_from_challenge_and_metadata(
    challenge: Challenge, resource_scopes: Any, own_scopes: Any, granted: Any, scope: str | None
) -> None:
    known = authority(resource_scopes=resource_scopes, own_scopes=own_scopes)
    assert scope_to_request(known, challenge, granted) == scope


@pytest.mark.parametrize(
    ("query", "sends_issuer"),
    [
        ("code=1", False),
        ("code=1&state=other", False),
        ("state=s", False),
        ("state=s&error=access_denied", False),
        ("state=s&code=1", True),
        ("state=s&code=1&iss=https://as.test/", True),
        ("state=s&code=1&iss=https://evil.test", False),
    ],
)
def test_a_redirect_that_does_not_match_the_request_is_refused(query: str, sends_issuer: bool) -> None:
    with pytest.raises(LoginFailed):
        read_code(f"http://127.0.0.1/callback?{query}", "s", authority(sends_issuer=sends_issuer))


def test_a_matching_redirect_contains_the_code() -> None:
    assert read_code("http://x/?state=s&code=1&iss=https://as.test", "s", authority(sends_issuer=True)) == "1"
    assert read_code("http://x/?state=s&code=1", "s", authority()) == "1"


@pytest.mark.parametrize("url", ["http://example.test/x", "file:///etc/passwd", "https:///x", "ftp://127.0.0.1/"])
async def test_a_login_uses_only_safe_addresses(url: str) -> None:
    with pytest.raises(LoginFailed):
        await Fetcher().get_json(url)


class Guarded:
    """An MCP server and its authorization server on one port, which requires a token and refreshes it once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.valid = "first"
        self.url = ""

    def answer(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, dict[str, str]]:
        base = self.url.removesuffix("/mcp")
        self.seen.append(f"{verb} {urlsplit(path).path}")
        match urlsplit(path).path:
            case "/.well-known/oauth-protected-resource/mcp":
                return 200, {"resource": self.url, "authorization_servers": [base], "scopes_supported": ["use"]}, {}
            case "/.well-known/oauth-authorization-server":
                ends = {f"{name}_endpoint": f"{base}/{name}" for name in ("authorization", "token", "registration")}
                return 200, {"issuer": base, **ends, "code_challenge_methods_supported": ["S256"]}, {}
            case "/registration":
                return 201, {"client_id": "me", **json.loads(body), "client_secret": "shh"}, {}
            case "/token":
                grant = parse_qs(body.decode())["grant_type"][0]
                self.valid = "first" if grant == "authorization_code" else "second"
                return 200, {"access_token": self.valid, "refresh_token": "again"}, {}
            case "/mcp" if verb == "POST":
                return self.serve(headers, json.loads(body))
        return 404, {}, {}

    def serve(self, headers: dict[str, str], message: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if headers.get("authorization") != f"Bearer {self.valid}":
            return 401, {"error": "invalid_token"}, {"www-authenticate": 'Bearer error="invalid_token"'}
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete", "content": []}
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": result}, {}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                verb, path, _ = first.split()
                status, answer, extra = self.answer(verb, path, headers, body)
                out = json.dumps(answer).encode()
                more = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
                kind = (
                    f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {len(out)}\r\n\r\n"
                )
                writer.write(kind.encode() + out)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def test_a_user_logs_in_once_and_tokens_are_refreshed_and_kept() -> None:
    guarded, storage, shown = Guarded(), dict[str, Any](), list[str]()
    server = await asyncio.start_server(guarded.connection, "127.0.0.1", 0)
    guarded.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    browsing: list[asyncio.Task[None]] = []

    async def browse(address: str) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        back = urlsplit(asked["redirect_uri"])
        _, writer = await asyncio.open_connection(back.hostname, back.port)
        writer.write(f"GET {back.path}?code=c&state={asked['state']} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def show(address: str) -> None:
        shown.append(address)
        browsing.append(asyncio.create_task(browse(address)))

    async with connect(guarded.url, auth=browser_login(show=show, storage=storage)) as session:
        await asyncio.gather(*(session.call_tool("x") for _ in range(5)))
        guarded.valid = "expired at the server"
        await asyncio.gather(*(session.call_tool("x") for _ in range(5)))
    async with connect(guarded.url, auth=browser_login(show=show, storage=storage)) as session:
        await session.call_tool("x")
    asked = parse_qs(urlsplit(shown[0]).query)
    assert (asked["scope"], asked["resource"], asked["code_challenge_method"]) == (["use"], [guarded.url], ["S256"])
    assert len(shown) == 1
    assert guarded.seen.count("POST /registration") == 1
    assert guarded.seen.count("POST /token") == 2
    assert storage[guarded.url]["access_token"] == "second"
    with pytest.raises(Unauthorized):
        async with connect(guarded.url):
            pass
    server.close()


@pytest.mark.parametrize(
    "address, opened",
    [
        ("https://as.test/authorize", True),
        ("http://127.0.0.1:9/authorize", True),
        ("http://login.example/authorize", False),
        ("http://192.0.2.1/authorize", False),
        ("file:///etc/passwd", False),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("ms-msdt:/id", False),
        ("https:///nohost", False),
        ("https://a b/", False),
        ("https://x/\u202e", False),
        ("--help", False),
        ("http://[", False),
    ],
)
def test_a_browser_is_sent_to_web_pages_only(address: str, opened: bool) -> None:
    assert may_be_opened(address) == opened
