"""Taskgate as a client of its upstreams, tested by the official client scenarios that apply to a gateway.

The scenarios about authorization have a person who opens the gateway's pages; most of them run in `make conformance` only. The one
about defaults in forms is for the client that shows the form, which a gateway does not. Left out are extensions that we do not have
(DPoP, enterprise-managed authorization, `private_key_jwt`, workload identity) and the fixed endpoints of 2025-03-26.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance import drive_gateway, drive_gateway_login
from tests.conformance.suite import SUITE, failures, read_verdicts
from tests.harness.node_reuse import NODE_AGAIN

pytestmark = [pytest.mark.slow, pytest.mark.peers("conformance"), pytest.mark.timeout(120)]
RELAY = Path(__file__).with_name("client_relay.py")
Client = Callable[[str, Mapping[str, str]], Awaitable[None]]
SCENARIOS = (
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("request-metadata", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
)
LOGINS = (
    ("auth/metadata-default", "2025-11-25"),
    ("auth/scope-step-up", "2025-11-25"),
    ("auth/iss-wrong-issuer", "2026-07-28"),
)
MORE_LOGINS = (
    *(
        (f"auth/{name}", "2025-11-25")
        for name in (
            "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "scope-from-www-authenticate",
            "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-retry-limit", "pre-registration",
            "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none",
        )
    ),
    *(
        (f"auth/{name}", "2026-07-28")
        for name in (
            "metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "scope-from-www-authenticate",
            "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-retry-limit", "pre-registration",
            "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none", "authorization-server-migration",
            "scope-step-up", "resource-mismatch", "offline-access-scope", "offline-access-not-supported",
            "iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-unexpected",
            "iss-normalized", "metadata-issuer-mismatch",
        )
    ),
    ("auth/2025-03-26-oauth-metadata-backcompat", "2025-03-26"),
    # Of an extension, which belongs to no revision.
    ("auth/client-credentials-basic", ""),
)  # fmt: skip


@pytest.mark.parametrize(("scenario", "revision"), SCENARIOS)
async def test_the_gateway_behaves_as_a_client_must(scenario: str, revision: str) -> None:
    await suite_verdict(drive_gateway.main, scenario, revision)


@pytest.mark.parametrize(("scenario", "revision"), LOGINS)
async def test_the_gateway_logs_in_as_a_client_must(scenario: str, revision: str) -> None:
    await suite_verdict(drive_gateway_login.main, scenario, revision)


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "revision"), MORE_LOGINS)
async def test_the_gateway_logs_in_as_a_client_must_in_every_scenario(scenario: str, revision: str) -> None:
    await suite_verdict(drive_gateway_login.main, scenario, revision)


async def suite_verdict(client: Client, scenario: str, revision: str) -> None:
    """The verdict of the suite on the client: no failure, and in a scenario of logins no warning either."""
    with tempfile.TemporaryDirectory(prefix="client-scenario-") as folder:
        async with at_hand(client, Path(folder) / "client") as command:
            words = ["client", "--command", command, "--scenario", scenario, "-o", f"{folder}/said"]
            words += ["--spec-version", revision] if revision else []
            env = {"MCP_CONFORMANCE_SCENARIO": scenario}
            _, out, err = await NODE_AGAIN.run(SUITE, words, env)
        verdicts = read_verdicts(Path(folder) / "said")
    assert verdicts, f"the suite reported nothing:\n{(out + err)[-2000:]}"
    assert failures(verdicts) == {}
    if scenario.startswith("auth/"):
        assert [name for name, verdict in verdicts.items() if verdict.status == "WARNING"] == []
    assert any(verdict.status == "SUCCESS" for verdict in verdicts.values())


@asynccontextmanager
async def at_hand(client: Client, place: Path) -> AsyncIterator[str]:
    """The command that the suite starts; its work runs here, until it has finished or the suite ends the command."""

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        working = asyncio.create_task(client(*json.loads(await reader.readline())))  # type: ignore[arg-type, var-annotated]
        gone = asyncio.create_task(reader.read())
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, gone):
            task.cancel()
        (why, _) = await asyncio.gather(working, gone, return_exceptions=True)
        writer.write("".join(traceback.format_exception(why)).encode() if isinstance(why, Exception) else b"")  # type: ignore[has-type]
        writer.close()

    async with await asyncio.start_unix_server(work, place):
        yield f"{sys.executable} -I -S {RELAY} {place}"
