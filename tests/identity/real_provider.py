"""A real OpenID provider (npm `oidc-provider`, certified) in a process of its own, in any role that issuers have here.

    async with real_provider(accounts={"ann": {"groups": ["sre"]}}, clients=[web_client("console", [callback])]) as provider:
        token = await provider.token_of_client("agent", "secret", resource="https://gate.example/mcp")
        landed = await provider.log_in(address_of_the_authorization_request, "ann")

Tests that use it carry `@pytest.mark.peers("oidc")`. `log_in` acts as the browser of a person: it follows redirects with cookies,
fills in the login and the consent, and stops in front of the first address that is not the provider's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin

import httpx2
from tests.harness.absent import HOME
from tests.harness.peers import PROGRAMS
from tests.harness.programs import Program, free_port, listening, running

MAX_STEPS: Final = 20


def web_client(client_id: str, callbacks: Sequence[str], secret: str = "secret-of-a-client") -> dict[str, Any]:
    """A confidential client that people log in with."""
    return {
        "client_id": client_id,
        "client_secret": secret,
        "redirect_uris": list(callbacks),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "scope": "openid offline_access read write deploy",
    }


def machine_client(client_id: str, secret: str = "secret-of-a-client") -> dict[str, Any]:
    """A confidential client that gets tokens of its own."""
    return {
        "client_id": client_id,
        "client_secret": secret,
        "redirect_uris": [],
        "response_types": [],
        "grant_types": ["client_credentials"],
        "scope": "read write deploy",
    }


@dataclass(slots=True)
class RealProvider:
    url: str
    program: Program

    async def token_of_client(
        self, client_id: str, secret: str = "secret-of-a-client", *, resource: str, scope: str = "read"
    ) -> str:
        """A signed access token for `resource`, of a machine client."""
        form = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
        async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
            reply = await client.post(f"{self.url}/token", data=form, auth=(client_id, secret))
        assert reply.status_code == 200, reply.text
        return str(reply.json()["access_token"])

    async def log_in(self, address: str, login: str, *, cookies: httpx2.Cookies | None = None) -> str:
        """Where the provider sends the browser after the login: the client's callback, with code, state and iss."""
        async with httpx2.AsyncClient(timeout=120, trust_env=False, cookies=cookies) as browser:
            reply = await browser.get(address)
            for _ in range(MAX_STEPS):
                if reply.is_redirect:
                    address = urljoin(address, reply.headers["location"])
                    if not address.startswith(f"{self.url}/"):
                        return address
                    reply = await browser.get(address)
                else:
                    prompt = re.search(r'name="prompt" value="(\w+)"', reply.text)
                    assert prompt is not None, reply.text
                    form = {"prompt": prompt[1], "login": login, "password": "any"}
                    reply = await browser.post(address, data=form)
        raise AssertionError("the login does not end")

    async def rotate_keys(self) -> None:
        """Sign with a new key from now on; the old ones stay published."""
        await self._post("rotate")

    async def revoke_everything(self) -> None:
        """Revoke all tokens, refresh tokens and consents."""
        await self._post("revoke")

    async def age_logins(self) -> None:
        """Set the time of every login at the provider an hour back."""
        await self._post("age")

    async def counts(self) -> dict[str, int]:
        """The number of requests by path."""
        found: dict[str, int] = json.loads(await self._post("counts"))
        return found

    async def _post(self, what: str) -> str:
        async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
            return (await client.post(f"{self.url}/test/{what}")).text


@asynccontextmanager
async def real_provider(**settings: Any) -> AsyncIterator[RealProvider]:
    """`settings`: accounts, clients, scopes, resource, accessTokenTtl, registration, refresh, rotate, format; see the program."""
    port = free_port()
    command = [str(HOME / "node"), str(PROGRAMS / "oidc_provider.mjs"), json.dumps({"port": port, **settings})]
    async with running(command, listening(port)) as program:
        yield RealProvider(f"http://127.0.0.1:{port}", program)
