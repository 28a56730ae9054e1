"""The typed server with its ledger, and two gateways in front of it.

One gateway promotes every call that does not end at once, the other waits as long as possible; each scene chooses one of
them, and none depends on the speed of the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.absent import HOME
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port, listening, running

SERVER = Path(__file__).resolve().parent / "typed_server.py"
DEADLINE = 60.0
AT_ONCE_MS, PATIENT_MS = 300, 600_000


@dataclass(slots=True)
class Setup:
    direct: str
    hasty: Gateway
    patient: Gateway
    ledger: Path
    http: httpx2.AsyncClient

    def happened(self, key: str) -> list[str]:
        """The events at the server for this key, in order."""
        rows = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return [row["happened"] for row in rows if row["key"] == key]

    async def until(self, key: str, what: str) -> None:
        """Wait until the ledger has it."""

        async def noted() -> Any:
            return True if what in self.happened(key) else None

        await eventually(noted, f"the server notes {what!r} for {key}, which has {self.happened(key)}")

    async def approve(self, key: str) -> None:
        """As the operator, over the API, the call that was made with this key."""

        async def waiting() -> Any:
            for row in await self.operator("GET", "/api/approvals"):
                if key in json.dumps(await self.operator("GET", f"/api/approvals/{row['id']}")):
                    return row["id"]
            return None

        found = await eventually(waiting, f"an approval for {key} is open")
        await self.operator("POST", f"/api/approvals/{found}/approve", {"reason": "agreed"})

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.hasty.state / "operator-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        response = await self.http.request(method, self.hasty.base + path, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()


async def eventually(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The first answer that is not None."""
    try:
        async with asyncio.timeout(DEADLINE):
            while (found := await look()) is None:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"waited {DEADLINE:g} s until {what}") from None
    return found


def configuration(url: str, promote_after_ms: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": {"typed": {"url": url}},
        # A stateless client that cannot answer questions needs a scope with the facade.
        "scopes": {
            "default": {"default_servers": ["*"], "names": "plain"},
            "both": {"default_servers": ["*"], "names": "plain", "mode": "both"},
        },
        "tasks": {"promote_after_ms": promote_after_ms},
        "governance": {"rules": [{"match": "pay", "action": "approve", "approval": "ops", "reason": "Costs money"}]},
        "approval": {"ops": {"channels": ["inbox"], "timeout": "10m"}},
    }


@asynccontextmanager
async def running_setup(folder: Path) -> AsyncIterator[Setup]:
    ledger, port = folder / "ledger.jsonl", free_port()
    ledger.touch()
    program: list[str | Path] = [HOME / "mcp23/bin/python", SERVER, "--http", str(port), "--ledger", ledger]
    direct = f"http://127.0.0.1:{port}/mcp"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(program, listening(port)))
        hasty, patient = [
            await stack.enter_async_context(running_gateway(configuration(direct, max_wait), folder / name))
            for name, max_wait in (("hasty", AT_ONCE_MS), ("patient", PATIENT_MS))
        ]
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=30, verify=NO_TLS))
        yield Setup(direct, hasty, patient, ledger, http)
