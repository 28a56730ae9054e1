"""After a run with every kind of credential, good and bad, no token or secret is found in the gateway's files and replies."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.console.test_console_pages import Person
from tests.identity.accounts import Browser, LoginIssuer, Notes, config, connected, digest, page_for
from tests.identity.issuer import an_issuer
from tests.virtual_time import Call, Gateway, Reply, Upstream, run, virtual_time

from taskgate import clock
from taskgate.cli.root import build_app
from taskgate.telemetry.logs import log

CLIENT_SECRET = "s3cret-of-the-gateway"
PAGES = (
    "/metrics", "/ready", "/api/v1/tasks", "/api/v1/questions", "/api/v1/servers", "/api/v1/approvals", "/api/v1/waterfall",
    "/api/v1/servers/notes/accounts", "/api/v1/openapi.json", "/oauth/client.json", "/.well-known/jwks.json",
)  # fmt: skip


def written(gate: Gateway) -> dict[str, bytes]:
    """Every file of the state folder; the operator's token and the installation's secret are what they are."""
    files = [path for path in gate.state.rglob("*") if path.is_file() and path.name not in ("operator-token", "secret")]
    return {path.name: path.read_bytes() for path in files}


@virtual_time
async def test_tokens_and_secrets_are_in_no_file_log_page_metric_or_error() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served, lifetime_s=100)
        notes = Notes(issuer)
        given: dict[str, Any] = config(issuer, client_id="gate", client_secret=CLIENT_SECRET)
        given["auth"] = {"jwt": [{"issuer": served.url, "audiences": ["gate"]}]}
        given["public_url"] = "https://gate.example"
        signed = served.token(sub="carol", exp=int(clock.wall()) + 3000)
        replies: list[Reply] = []
        async with Gateway(given, {"notes": notes.upstream()}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            page = await page_for(gate, "ann")
            browser = await Browser(gate).log_in_as("ann")
            replies.append(await browser.connect(page, issuer, "ann-at-notes"))
            replies.append(await browser.come_back({"code": "code-of-mallory", "state": "x"}))
            for token in ("token-of-ann", signed):
                caller = await gate.caller("2025", token=token)
                replies.append(await caller.call("notes__read"))
                await gate.advance(90)
                replies.append(await caller.call("notes__read"))
            issuer.good.clear()
            issuer.refresh.clear()
            ann = await gate.caller("2025", token="token-of-ann")
            replies.append(await ann.call("notes__read"))
            bad = {"authorization": f"Bearer {signed[:-4]}AAAA", "content-type": "application/json"}
            replies.append(await gate.http("POST", "/mcp", body=b"{}", headers=bad).done())
            replies += [await gate.operator("GET", path) for path in PAGES]
            await gate.advance(10)
            log = "\n".join(str(line) for line in gate.log)
            secrets = {
                CLIENT_SECRET, "token-of-ann", "token-of-bob", signed, signed[:-4] + "AAAA", signed.rsplit(".", 1)[1],
                "access-ann", "access-lister", "refresh-ann", "refresh-lister",
                "code_verifier", "code-of-mallory", *(value for value, _, _ in browser.cookies.values()),
            }  # fmt: skip
            secrets |= {
                form[name]
                for form in issuer.forms
                for name in ("code", "code_verifier", "refresh_token")
                if name in form
            }
            assert len(issuer.forms) >= 4, "the run had logins and renewals in it"
            assert b"notes" in log.encode() + b"".join(written(gate).values()), "what was searched is not empty"
            for where, text in {"log": log.encode(), **written(gate)}.items():
                assert [secret for secret in secrets if secret.encode() in text] == [], where
            for reply in replies:
                shown = reply.body + json.dumps(reply.headers).encode()
                assert [secret for secret in secrets if secret.encode() in shown] == [], reply.body[:300]
            await gate.stop()
            for where, text in written(gate).items():
                assert [secret for secret in secrets if secret.encode() in text] == [], where


GIVEN = {
    "variable": "s3cret-by-variable-0123456789",
    "file": "s3cret-by-file-0123456789",
    "command": "s3cret-by-command-0123456789",
    "store key": "s3cret-key-of-the-store-0123456789abcdef",
    "webhook": "s3cret-of-the-webhook-0123456789",
    "login client": "s3cret-of-the-login-client-0123456789",
    "introspection client": "s3cret-of-introspection-0123456789",
    "caller": "token-of-agent-0123456789abcdef",
    "admin": "token-of-admin-0123456789abcdef",
    "wrong": "token-of-mallory-0123456789abcdef",
}


def every_kind(folder: Path, issuer: str) -> dict[str, Any]:
    (folder / "by-file.txt").write_text(GIVEN["file"] + "\n")
    (folder / "by-command.py").write_text(f"print({GIVEN['command']!r})")
    references = ["${env:TASKGATE_TEST_SECRET}", "${file:by-file.txt}", f"${{command:{sys.executable} by-command.py}}"]
    held = {"match": "pay", "action": "approve"}
    webhook = {"type": "webhook", "url": "http://127.0.0.1:9/hook", "secret": GIVEN["webhook"]}
    tokens = [("agent", GIVEN["caller"], []), ("admin", GIVEN["admin"], ["admin"])]
    return {
        "secrets": {"allow_command": True},
        "store": {"url": "sqlite:///state/taskgate.db", "key": GIVEN["store key"]},
        "tokens": [{"id": name, "sha256": digest(token), "roles": roles} for name, token, roles in tokens],
        "auth": {
            "jwt": [{"issuer": issuer, "audiences": ["gate"]}],
            "introspection": {
                "url": f"{issuer}/introspect", "issuer": issuer, "audiences": ["gate"],
                "client_id": "gate", "client_secret": GIVEN["introspection client"],
            },
            "login": {"issuer": issuer, "client_id": "gate", "client_secret": GIVEN["login client"]},
        },
        "servers": {
            "bank": {"headers": {f"x-{number}": one for number, one in enumerate(references)}},
            **{f"p{number}": {"command": f"./none-{one}", "args": [one]} for number, one in enumerate(references)},
        },
        "governance": {"rules": [held], "record": {}},
        "approval": {"default": {"channels": ["inbox", webhook]}},
    }  # fmt: skip


def paying() -> Upstream:
    bank = Upstream("2025")

    @bank.tool("pay")
    async def pay(_call: Call) -> str:
        return "paid"

    @bank.tool("read")
    async def read(_call: Call) -> str:
        return "5"

    @bank.tool("fail")
    async def fail(_call: Call) -> str:
        raise RuntimeError("no")

    return bank


async def walked(gate: Gateway, person: Person) -> list[Reply]:
    """Every page and every answer of the API that can be read without a name in its address."""
    routes = [*gate.life.dashboard.api.table.routes, *gate.life.dashboard._pages.table.routes]
    paths = [route.path for route in routes if route.method == "GET" and not route.places and not route.stream]
    return [await (gate.operator("GET", path) if path.startswith("/api/") else person.get(path)) for path in paths]


async def everything_used(folder: Path, found: dict[str, str], kept: list[bytes]) -> None:
    """Use every kind of credential, good and bad; `found` collects the secrets created here, `kept` the replies."""
    async with an_issuer() as issuer:
        env = {"TASKGATE_TEST_SECRET": GIVEN["variable"]}
        async with Gateway(every_kind(folder, issuer.url), {"bank": paying()}, folder=folder, env=env) as gate:
            signed = issuer.token(sub="carol", exp=int(clock.wall()) + 3000)
            found |= {"signed": signed, "signature": signed.rsplit(".", 1)[1], "operator": gate.operator_token}
            replies: list[Reply] = []
            for token in (GIVEN["caller"], signed):
                caller = await gate.caller("2025", token=token, capabilities={"tasks": {}})
                replies += [await caller.call("bank__read", {"note": "x"}), await caller.call("bank__fail")]
                replies.append(await caller.call("bank__pay", {"to": "bob"}, task={"ttl": 60_000}))
                replies.append(await caller.call("p0__anything"))
            for bad in (GIVEN["wrong"], signed[:-4] + "AAAA", GIVEN["caller"] + "x"):
                headers = {"authorization": f"Bearer {bad}", "content-type": "application/json"}
                replies.append(await gate.http("POST", "/mcp", body=b"{}", headers=headers).done())
                replies.append(await gate.http("POST", f"/mcp?access_token={bad}", body=b"{}").done())
                replies.append(await gate.http("GET", "/api/v1/tasks", headers=headers).done())
            person = await Person(gate).log_in(GIVEN["admin"])
            found["cookie"] = person.cookie.partition("=")[2]
            link = gate.life.login_url()
            found["login code"] = re.split(r"[#?=/]", link)[-1]
            made = await gate.operator("POST", "/api/v1/scopes", {"config": {"mcp.enabled": "true"}})
            found["temporary scope"] = made.json()["token"]
            (asked,) = [
                row["id"] for row in (await gate.operator("GET", "/api/v1/approvals")).json() if "agent" in str(row)
            ]
            replies.append(await gate.operator("POST", f"/api/v1/approvals/{asked}/approve", {"reason": "fine"}))
            begun = await gate.http("GET", "/login/oidc").done()
            replies.append(await gate.http("GET", "/login/callback?code=c0de-of-mallory&state=x").done())
            found["login cookie"] = (
                begun.headers.get("set-cookie", "=never-set-0123456789").split(";")[0].partition("=")[2]
            )
            replies += await walked(gate, person)
            replies += [await gate.operator("GET", path) for path in ("/ready", "/metrics", "/health")]
            await gate.advance(30)
            gate.config_file.write_text(gate.config_file.read_text() + "\nnonsense: ${env:TASKGATE_TEST_SECRET}\n")
            replies.append(await gate.operator("POST", "/api/v1/system/reload", {}))
            assert len([reply for reply in replies if reply.status == 200]) > 30
            kept += [reply.body + json.dumps(reply.headers).encode() for reply in replies]
            kept.append("\n".join(str(line) for line in gate.log).encode())
            kept += written(gate).values()
            gate.crash()
            kept += written(gate).values()


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_of_any_kind_is_found_anywhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("TASKGATE_TEST_SECRET", GIVEN["variable"])
    monkeypatch.setenv("TASKGATE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(log, "as_text", form == "text")
    found: dict[str, str] = {}
    kept: list[bytes] = []
    run(lambda: everything_used(tmp_path, found, kept))
    file = tmp_path / "taskgate.yaml"
    file.write_text(file.read_text().replace("\nnonsense: ${env:TASKGATE_TEST_SECRET}\n", ""))
    for words in (
        ["doctor"],
        ["doctor", "--json"],
        ["check"],
        ["audit", "verify"],
        ["audit", "export"],
        ["scopes", "explain"],
    ):
        reply = CliRunner().invoke(build_app(), [*words, "-c", str(file)])
        kept.append((reply.output + reply.stderr + repr(reply.exception)).encode())
    logged = capfd.readouterr()
    kept.append((logged.err + logged.out).encode())
    assert b"server not listed" in kept[-1], "the log was searched"
    secrets = {**GIVEN, **found}
    assert all(len(secret) > 8 for secret in secrets.values()), secrets
    everywhere = b"\n".join(kept)
    for kind, secret in secrets.items():
        at = everywhere.find(secret.encode())
        assert at < 0, (kind, everywhere[max(0, at - 200) : at + 60])
