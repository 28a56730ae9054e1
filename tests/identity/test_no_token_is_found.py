"""After a run with every kind of credential, good and bad, no token or secret is found in what the gateway wrote or said."""

from __future__ import annotations

import json
from typing import Any

from tests.identity.accounts import Browser, LoginIssuer, Notes, config, page_for
from tests.identity.issuer import an_issuer
from tests.seam import Gateway, Reply, seam

from taskgate import clock

CLIENT_SECRET = "s3cret-of-the-gateway"
PAGES = (
    "/metrics", "/ready", "/api/v1/tasks", "/api/v1/questions", "/api/v1/servers", "/api/v1/approvals", "/api/v1/waterfall",
    "/api/v1/servers/notes/accounts", "/api/v1/openapi.json", "/oauth/client.json", "/.well-known/jwks.json",
)  # fmt: skip


def written(gate: Gateway) -> dict[str, bytes]:
    """Every file of the state folder; the operator's token and the installation's secret are what they are."""
    files = [path for path in gate.state.rglob("*") if path.is_file() and path.name not in ("operator-token", "secret")]
    return {path.name: path.read_bytes() for path in files}


@seam
async def test_tokens_and_secrets_stand_in_no_file_log_page_metric_or_error() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served, life_s=100)
        notes = Notes(issuer)
        given: dict[str, Any] = config(issuer, client_id="gate", client_secret=CLIENT_SECRET)
        given["auth"] = {"jwt": [{"issuer": served.url, "audiences": ["gate"]}]}
        given["public_url"] = "https://gate.example"
        signed = served.token(sub="carol", exp=int(clock.wall()) + 3000)
        replies: list[Reply] = []
        async with Gateway(given, {"notes": notes.upstream()}) as gate:
            await Browser(gate).connect(await page_for(gate, ""), issuer, "lister")
            await gate.advance(70)
            page = await page_for(gate, "ann")
            browser = Browser(gate)
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
                "code_verifier", "code-of-mallory", browser.cookie.partition("=")[2],
            }  # fmt: skip
            secrets |= {
                form[name]
                for form in issuer.forms
                for name in ("code", "code_verifier", "refresh_token")
                if name in form
            }
            assert len(issuer.forms) >= 4, "the run had logins and renewals in it"
            assert b"notes" in log.encode() + b"".join(written(gate).values()), "what was searched is not empty"
            for where, said in {"log": log.encode(), **written(gate)}.items():
                assert [secret for secret in secrets if secret.encode() in said] == [], where
            for reply in replies:
                shown = reply.body + json.dumps(reply.headers).encode()
                assert [secret for secret in secrets if secret.encode() in shown] == [], reply.body[:300]
            await gate.stop()
            for where, said in written(gate).items():
                assert [secret for secret in secrets if secret.encode() in said] == [], where
