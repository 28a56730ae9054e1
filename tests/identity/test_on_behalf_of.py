"""Servers that receive the identity of the caller, by an assertion of the gateway or an exchanged token; and additional rights."""

from __future__ import annotations

import json
from typing import Any

from joserfc import jws
from joserfc.jwk import OKPKey
from tests.identity.accounts import LoginIssuer, Notes, config, connected, digest
from tests.identity.issuer import an_issuer
from tests.virtual_time import Call, Gateway, Upstream, the_loop, virtual_time

TOKENS = [{"id": who, "sha256": digest(f"token-of-{who}")} for who in ("ann", "bob")]


class Listening:
    """A server that records the credentials it received."""

    def __init__(self, generation: str) -> None:
        self.shown: list[str] = []
        self.upstream = Upstream(generation, authorized=self._seen)

        @self.upstream.tool("read")
        async def read(_call: Call) -> str:
            return self.shown[-1]

    def _seen(self, header: str) -> bool:
        self.shown.append(header.removeprefix("Bearer "))
        return bool(header)


async def keys_of(gate: Gateway) -> Any:
    reply = await gate.http("GET", "/.well-known/jwks.json").done()
    (key,) = json.loads(reply.body)["keys"]
    assert "d" not in key
    return OKPKey.import_key(key)


@virtual_time
async def test_an_own_assertion_names_caller_and_server_and_expires_soon() -> None:
    for generation in ("2025", "2026"):
        notes = Listening(generation)
        servers = {"notes": {"auth": {"type": "forward_identity"}}}
        given = {"public_url": "https://gate.example", "tokens": TOKENS, "servers": servers}
        async with Gateway(given, {"notes": notes.upstream}) as gate:
            key = await keys_of(gate)
            for who in ("ann", "bob", "ann"):
                caller = await gate.caller("2025", token=f"token-of-{who}")
                text = (await caller.call("notes__read")).text
                claims = json.loads(jws.deserialize_compact(text, key, algorithms=["EdDSA"]).payload)
                assert (claims["sub"], claims["iss"]) == (who, "https://gate.example")
                assert claims["aud"].endswith("/mcp")
                assert claims["exp"] - claims["iat"] <= 60
                await gate.advance(65)
            for line in notes.shown:
                claims = json.loads(jws.deserialize_compact(line, key, algorithms=["EdDSA"]).payload)
                assert claims["exp"] > the_loop().time() or claims["sub"] in ("ann", "bob", "taskgate")
            assert not any("token-of-" in line for line in notes.shown), "a caller's own token goes nowhere"


@virtual_time
async def test_token_exchange_uses_an_assertion_and_never_the_callers_token() -> None:
    async with an_issuer() as served:
        forms: list[dict[str, Any]] = []

        def exchange(body: bytes) -> tuple[int, bytes]:
            from urllib.parse import parse_qs

            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            forms.append(form)
            claims = json.loads(jws.deserialize_compact(form["subject_token"], keys[0], algorithms=["EdDSA"]).payload)
            payload = {"access_token": f"exchanged-for-{claims['sub']}", "token_type": "Bearer", "expires_in": 100}
            return 200, json.dumps({**payload, "issued_token_type": "urn:x"}).encode()

        keys: list[Any] = []
        served.pages["/token"] = exchange
        notes = Listening("2026")
        account = {"client_id": "gate", "client_secret": "s3cret", "token_url": f"{served.url}/token"}
        servers = {"notes": {"auth": {"type": "token_exchange", "scope": "read", **account}}}
        async with Gateway({"tokens": TOKENS, "servers": servers}, {"notes": notes.upstream}) as gate:
            keys.append(await keys_of(gate))
            await gate.advance(70)
            for client_generation in ("2025", "2026"):
                for who in ("ann", "bob"):
                    caller = await gate.caller(client_generation, token=f"token-of-{who}")
                    assert (await caller.call("notes__read")).text == f"exchanged-for-{who}"
            of_ann = [form for form in forms if "exchange" in form["grant_type"]]
            assert len(of_ann) <= 4, "one exchange for each principal, and one for the lists"
            assert all(form["resource"].endswith("/mcp") and form["scope"] == "read" for form in forms)
            assert not any("token-of-" in json.dumps(form) for form in forms)


@virtual_time
async def test_a_step_up_challenge_is_answered_after_one_consent() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer)
        challenge_header = 'Bearer error="insufficient_scope", scope="write"'

        def authorized(header: str) -> bool:
            token = header.removeprefix("Bearer ")
            notes.last = issuer.good.get(token, "")
            return notes.last == "lister" or "write" in issuer.scopes.get(token, "").split()

        upstream = Upstream(
            "2025", authorized=authorized, challenge=lambda: (403, challenge_header) if notes.last else (401, "Bearer")
        )

        @upstream.tool("change")
        async def change(_call: Call) -> str:
            return f"changed by {notes.last}"

        async with Gateway(config(issuer, scope="read"), {"notes": upstream}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            browser = await connected(gate, issuer, "ann", "ann-at-notes")
            ann = await gate.caller("2025", token="token-of-ann")
            call = ann.begin_call("notes__change")
            await gate.advance(1)
            (question,) = json.loads((await gate.operator("GET", "/api/v1/questions")).body)
            asked = await browser.begin(question["params"]["url"])
            assert "scope=read+write" in asked, "what was given before is asked for again, and what is missing"
            await browser.connect(question["params"]["url"], issuer, "ann-at-notes")
            assert (await call.done()).text == "changed by ann-at-notes"
