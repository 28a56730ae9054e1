"""`taskgate servers login`: a small program acts as the browser, the rest is real."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml
from tests.docs.blocks import blocks_of, commands_in
from tests.docs.sandbox import write_launchers
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end

from taskgate.identity.account_file import FileRows
from taskgate.identity.login_store import LoginStore
from taskgate.inbound.gateway_secrets import gateway_secret

BROWSER = f"{sys.executable} -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()' %s"

PAGE = "docs/how-to/oauth-servers.md"


class Authority:
    """A server that requires a login, and its issuer: one program on one port, as in small deployments."""

    def __init__(self) -> None:
        self.url = ""
        self.challenge = ""
        self.exchanged: dict[str, list[str]] = {}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode()
        length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(length[0]) if length else b""
        status, reply, more = self.response(path, body)
        writer.write(f"HTTP/1.1 {status} X\r\n{more}content-length: {len(reply)}\r\nconnection: close\r\n\r\n".encode())
        writer.write(reply)
        await writer.drain()
        writer.close()

    def response(self, path: str, body: bytes) -> tuple[int, bytes, str]:
        parts = urlsplit(path)
        if parts.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.challenge = asked["code_challenge"]
            return 302, b"", f"location: {asked['redirect_uri']}?code=c-1&state={asked['state']}\r\n"
        if parts.path == "/token":
            self.exchanged = parse_qs(body.decode())
            response = {"access_token": "a-1", "refresh_token": "r-1", "expires_in": 600, "token_type": "Bearer"}
            return 200, json.dumps(response).encode(), ""
        documents = {
            "/.well-known/oauth-protected-resource/mcp": {
                "resource": f"{self.url}/mcp",
                "authorization_servers": [self.url],
            },
            "/.well-known/oauth-authorization-server": {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            },
        }
        found = documents.get(parts.path)
        return (404, b"{}", "") if found is None else (200, json.dumps(found).encode(), "")


async def run(folder: Path, *words: str) -> tuple[int, str]:
    env = {**os.environ, "BROWSER": BROWSER, "TASKGATE_STATE_DIR": str(folder / "state")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taskgate", "servers", *words, "--config", str(folder / "taskgate.yaml"),
        env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode() + err.decode()


@asynccontextmanager
async def an_authority() -> AsyncIterator[Authority]:
    authority = Authority()
    server = await asyncio.start_server(authority.answer, "127.0.0.1", 0)
    authority.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield authority
    finally:
        server.close()


async def test_the_commands_of_the_page_for_oauth_servers_run(tmp_path: Path) -> None:
    """Word for word, with addresses of this machine in place of the page's."""
    write_launchers(tmp_path / "bin")
    shared, each = [yaml.safe_load(block.body) for block in blocks_of(PAGE) if block.language == "yaml"]
    async with an_authority() as authority:
        for name, shown, number in (("shared", shared, 0), ("each", each, 1)):
            known = {"url": f"{authority.url}/mcp", "auth": {**shown["servers"]["linear"]["auth"], "client_id": "gate"}}
            async with running_gateway({"servers": {"linear": known}}, tmp_path / name) as gateway:
                token = (gateway.state / "operator-token").read_text().strip()
                env = {**os.environ, "BROWSER": BROWSER, "TASKGATE_STATE_DIR": str(gateway.state)}
                env |= {"TASKGATE_TOKEN": token, "TASKGATE_CONFIG": str(gateway.config)}
                env["PATH"] = os.pathsep.join((str(tmp_path / "bin"), str(Path(sys.executable).parent), env["PATH"]))
                block = [block for block in blocks_of(PAGE) if block.language == "console"][number]
                for command in commands_in(block):
                    text = command.text.replace("https://gate.example.com", gateway.base)
                    code, out, err = await run_to_end(["bash", "-c", text], env, within=120)
                    assert code == 0, (text, out, err)


async def test_a_login_is_stored_encrypted_and_deleted(tmp_path: Path) -> None:
    async with an_authority() as authority:
        auth = {"type": "authorization_code", "client_id": "gate", "scope": "read"}
        config = {"servers": {"notes": {"url": f"{authority.url}/mcp", "auth": auth}, "files": {"command": "true"}}}
        (tmp_path / "taskgate.yaml").write_text(json.dumps(config))
        code, output = await run(tmp_path, "login", "files")
        assert (code, "authorization_code" in output) == (2, True)
        code, output = await run(tmp_path, "login", "notes", "--json")
        assert code == 0, output
        line = json.loads(output[output.index("{") : output.rindex("}") + 1])
        assert line == {"server": "notes", "issuer": authority.url, "renews": True}
        assert authority.exchanged["grant_type"] == ["authorization_code"]
        assert authority.exchanged["resource"] == [f"{authority.url}/mcp"]
        assert authority.challenge, "the code was bound to its verifier"
        state = tmp_path / "state"
        logins = LoginStore(FileRows(state / "server-logins"), gateway_secret(state))
        kept = logins.load("notes")
        assert kept is not None
        assert (kept.access_token, kept.refresh_token, kept.client_id) == ("a-1", "r-1", "gate")
        assert b"a-1" not in (state / "server-logins").read_bytes()
        assert "a-1" not in output
        assert (await run(tmp_path, "logout", "notes"))[0] == 0
        assert logins.load("notes") is None
