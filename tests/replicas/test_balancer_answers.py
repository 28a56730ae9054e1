"""The errors that HAProxy and nginx return with the files of `deploy/`: a gateway dies during a call, or none is running."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.harness.absent import find_program
from tests.harness.gateway import Gateway
from tests.harness.peers import CALLERS, Caller
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import Answer, RawClient
from tests.replicas.test_forwarding import SLOWLY
from tests.replicas.three_gateways import DEPLOY, LONG_LEASE, Replicas, deployed, nginx_around, three_replicas

DEADLINE_S = 60
BALANCERS = [pytest.param(kind, marks=pytest.mark.peers(kind)) for kind in ("haproxy", "nginx")]
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("balancers")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas() -> AsyncIterator[Replicas]:
    with tempfile.TemporaryDirectory(prefix="balanced-") as folder:
        async with three_replicas(Path(folder), number=2, launcher=LONG_LEASE, tasks=SLOWLY) as found:
            yield found


class Balanced:
    """Two gateways behind a balancer; the test chooses which of them run."""

    def __init__(self, replicas: Replicas, url: str) -> None:
        self.first, self.second = replicas.gateways
        self.ledger, self.url = replicas.ledger, url

    async def only_first(self) -> None:
        await _ended(self.second)
        await _running(self.first)
        await self._reaches(self.first)

    async def none(self) -> None:
        await _ended(self.first)
        await _ended(self.second)

    async def first_crashes_during(self, call: str, work: asyncio.Task[Any]) -> None:
        """The first gateway has the call. Another one, which could run it a second time, is there before it dies."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.ledger.count(call):
                assert not work.done(), work
                await asyncio.sleep(0.05)
        await _running(self.second)
        await self._reaches(self.second)
        await self.first.kill()

    async def _reaches(self, gateway: Gateway) -> None:
        """Until the balancer sends requests to this gateway."""
        token = (gateway.state / "operator-token").read_text().strip()
        async with asyncio.timeout(DEADLINE_S), httpx2.AsyncClient(timeout=30, verify=NO_TLS) as http:
            while True:
                found = await http.get(self.url.replace("/mcp", "/ready"), headers={"authorization": f"Bearer {token}"})
                replicas = found.json().get("replicas", ())
                if any(each["self"] and each["address"].endswith(f":{gateway.port}") for each in replicas):
                    return
                await asyncio.sleep(0.05)


async def _ended(gateway: Gateway) -> None:
    if gateway.program is not None and gateway.program.alive:
        await gateway.kill()


async def _running(gateway: Gateway) -> None:
    if gateway.program is None or not gateway.program.alive:
        await gateway.start()


def _is_error_of_the_balancer(answer: Answer, error_type: str, executed: str) -> None:
    assert answer.status in (502, 503)
    assert answer.headers["content-type"] == "application/json"
    assert answer.reply["jsonrpc"] == "2.0"
    assert answer.reply["id"] is None
    assert answer.error["data"] == {"error_type": error_type, "executed": executed}


@pytest.mark.parametrize("kind", BALANCERS)
@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
async def test_a_crash_of_a_gateway_during_a_call_is_reported_as_executed_maybe(
    replicas: Replicas, kind: str, kept: bool, tmp_path: Path
) -> None:
    """On a kept connection HAProxy would by itself close it without an answer, upon which many clients send the call again."""
    call = f"{kind}-{kept}"
    await _running(replicas.gateways[0])
    async with deployed(kind, replicas.gateways, tmp_path) as url, RawClient(url, stateless=True) as caller:
        balanced = Balanced(replicas, url)
        await balanced.only_first()
        for number in range(3 if kept else 0):
            assert "result" in (await caller.call("books__read", {"call": f"{call}-{number}"})).reply
        work = asyncio.create_task(caller.call("books__once", {"call": call, "seconds": 600}))
        await balanced.first_crashes_during(call, work)
        async with asyncio.timeout(DEADLINE_S):
            _is_error_of_the_balancer(await work, "outcome_unknown", "maybe")
        assert replicas.ledger.count(call) == 1


@pytest.mark.parametrize("kind", BALANCERS)
async def test_without_a_gateway_every_method_is_answered_with_executed_no(
    replicas: Replicas, kind: str, tmp_path: Path
) -> None:
    await _running(replicas.gateways[0])
    async with deployed(kind, replicas.gateways, tmp_path) as url, RawClient(url) as session:
        await Balanced(replicas, url).none()
        for _ in range(3):
            answer = await session.call("books__once", {"call": f"{kind}-nobody"})
            _is_error_of_the_balancer(answer, "gateway_unreachable", "no")
        for method in ("GET", "DELETE"):
            headers = {"accept": "text/event-stream", **session.headers}
            found = await session.http.request(method, url, headers=headers)
            answer = Answer(found.status_code, found.headers, [found.json()])
            _is_error_of_the_balancer(answer, "gateway_unreachable", "no")
        assert replicas.ledger.count(f"{kind}-nobody") == 0


@pytest.mark.peers("nginx")
async def test_a_request_that_is_too_large_for_nginx_is_a_json_rpc_error(replicas: Replicas, tmp_path: Path) -> None:
    """HAProxy has no limit of its own: there the gateway answers."""
    await _running(replicas.gateways[0])
    async with deployed("nginx", replicas.gateways, tmp_path) as url, RawClient(url, stateless=True) as caller:
        answer = await caller.post_bytes(bytes(5_000_000))
        assert answer.status == 413
        assert answer.error["data"] == {"error_type": "invalid_request", "executed": "no"}


@pytest.mark.peers("nginx")
@pytest.mark.parametrize("connected", [False, True], ids=["nothing listens", "dies after reading"])
async def test_the_snippet_for_one_gateway_reports_executed(connected: bool, tmp_path: Path) -> None:
    async def read_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    page = (DEPLOY.parent / "docs" / "how-to" / "reverse-proxy.md").read_text()
    snippet = page.split("```nginx\n")[1].split("```")[0]
    port, behind = free_port(), free_port()
    server = await asyncio.start_server(read_and_close, "127.0.0.1", behind) if connected else None
    snippet = snippet.replace("# In the server block:", f"server {{ listen 127.0.0.1:{port};")
    text = nginx_around(snippet.replace("127.0.0.1:7467", f"127.0.0.1:{behind}") + "}", tmp_path)
    (tmp_path / "nginx.conf").write_text(text)
    words = [str(find_program("nginx")), "-p", str(tmp_path), "-e", str(tmp_path / "errors")]
    try:
        async with running([*words, "-c", str(tmp_path / "nginx.conf")], listening(port)):
            async with RawClient(f"http://127.0.0.1:{port}/mcp", stateless=True) as caller:
                answer = await caller.call("files__delete", {"name": "a"})
        expected = ("outcome_unknown", "maybe") if connected else ("gateway_unreachable", "no")
        _is_error_of_the_balancer(answer, *expected)
    finally:
        if server is not None:
            server.close()


def _clients() -> list[Any]:
    """HAProxy's answers for all of them; nginx's have the same form."""
    return [
        pytest.param(
            caller,
            kind,
            id=f"{caller.name}-{kind}",
            marks=[pytest.mark.peers(caller.peer, kind), *([pytest.mark.long] if kind == "nginx" else [])],
        )
        for caller in CALLERS
        for kind in ("haproxy", "nginx")
    ]


@pytest.mark.parametrize(("caller", "kind"), _clients())
async def test_clients_end_a_call_at_once_when_its_gateway_crashes(
    replicas: Replicas, caller: Caller, kind: str, tmp_path: Path
) -> None:
    """None waits for its own timeout. The SDKs show the JSON-RPC error, or the HTTP status; mcp 1.30 ends its whole session."""
    call = f"{caller.name}-{kind}"
    await _running(replicas.gateways[0])
    async with deployed(kind, replicas.gateways, tmp_path) as url:
        balanced = Balanced(replicas, url)
        await balanced.only_first()
        script = [
            {"op": "call", "name": "books__read", "arguments": {"call": f"{call}-before"}},
            {"op": "call", "name": "books__once", "arguments": {"call": call, "seconds": 600}},
        ]
        work = asyncio.create_task(_played(caller, script, url))
        await balanced.first_crashes_during(call, work)
        seen = await work
        assert "502" in seen or "outcome_unknown" in seen, seen
        assert replicas.ledger.count(call) == 1


async def _played(caller: Caller, script: list[dict[str, Any]], url: str) -> str:
    """What the client reported of the last step; of one that ended with its transport, what it wrote at its end."""
    try:
        return str((await caller.play(script, url=url))[-1]["error"])
    except AssertionError as ended:
        return str(ended)
