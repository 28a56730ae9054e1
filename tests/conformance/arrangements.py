"""The targets of the suite: an everything-server alone, and Taskgate in front of it in several arrangements.

There are two: our own, which also has tasks and can be held to one generation, and the official one of the Python SDK.

Behind Taskgate the scope uses plain names, because the suite calls fixed ones. One arrangement has an upstream
without tasks of its own: there the gateway itself must provide them.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.harness.absent import HOME
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import EVERYTHING
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient
from tests.replicas.three_gateways import replicas_of

KEYED_QUESTIONS = {
    "input-required-result-basic-elicitation",
    "input-required-result-ignore-extra-params",
    "input-required-result-multiple-input-requests",
}
OF_ONE_PROGRAM = {"tools-list:tools-list-deterministic-order"}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The setup of the everything-server: its transport, its generation, and whether it has tasks."""

    name: str
    options: tuple[str, ...] = ()
    stdio: bool = False
    own_tasks: bool = False

    def must_pass(self, check: str, *, replicas: bool = False) -> bool:
        """Whether this arrangement must pass a check.

        A server of 2025-11-25 pushes its questions without keys, so no gateway can return the keys that the suite expects. Of
        a server on standard streams each of several gateways starts its own program, and a tool that one of them adds is not
        in the others.
        """
        if replicas and self.stdio and check.split("/")[0] in OF_ONE_PROGRAM:
            return False
        return "2025" not in self.options or check.split(":")[0] not in KEYED_QUESTIONS

    @asynccontextmanager
    async def server(self) -> AsyncIterator[dict[str, Any]]:
        """The `servers` entry for it, while it runs."""
        if self.stdio:
            entry = EVERYTHING.stdio()
            yield {**entry, "args": [*entry["args"], *self.options]}
            return
        port = free_port()
        async with running(EVERYTHING.command("--http", str(port), *self.options), listening(port)):
            yield {"url": f"http://127.0.0.1:{port}/mcp"}

    @asynccontextmanager
    async def through(self) -> AsyncIterator[str]:
        """The URL of a gateway in front of it."""
        async with self.server() as entry, before(entry, OWN_TASKS if self.own_tasks else {}) as url:
            yield url


@asynccontextmanager
async def through_replicas(arrangement: Arrangement) -> AsyncIterator[str]:
    """The URL of a round-robin balancer, without stickiness, in front of three gateways on one PostgreSQL store."""
    more = OWN_TASKS if arrangement.own_tasks else {}
    with tempfile.TemporaryDirectory(prefix="conformance-replicas-") as folder:
        async with arrangement.server() as entry, replicas_of(plain_configuration(entry, more), Path(folder)) as found:
            gateways, balancer, _ = found
            if arrangement.stdio:
                await asyncio.gather(*(programs_started(gateway) for gateway in gateways))
            yield balancer.url


async def programs_started(gateway: Gateway) -> None:
    """A gateway starts a server's program for each generation with the first call. The suite gives some calls half a second,
    in which a program that is still starting does not respond; on a busy machine that is so for the first scenarios."""
    for stateless in (True, False):
        able: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}
        async with RawClient(gateway.url, stateless=stateless, capabilities=able) as caller:
            assert "result" in (await caller.call("test_simple_text")).reply


@dataclass(frozen=True, slots=True)
class Official:
    """The everything-server that an SDK is tested with. It supports both generations, and has no tasks."""

    name: str
    peer: str
    program: tuple[str, ...]
    """The command that starts it on HTTP; `{port}` is replaced by the port."""
    stdio: tuple[str, ...] = ()
    """What starts it on standard streams, where it can."""
    undecided: frozenset[str] = frozenset()
    """Checks whose outcome through the gateway depends on a few milliseconds."""

    def due(self, lost: dict[str, str]) -> dict[str, str]:
        return {name: why for name, why in lost.items() if name not in self.undecided}

    @asynccontextmanager
    async def directly(self) -> AsyncIterator[str]:
        port = free_port()
        words = [word.format(port=port) for word in self.program]
        async with running(words, listening(port), env={"PORT": str(port)}) as program:
            yield f"http://127.0.0.1:{port}/mcp"
            # Asked to end it would wait for connections that the suite's process keeps open.
            program.end_group(signal.SIGKILL)

    @asynccontextmanager
    async def through(self, *, stdio: bool) -> AsyncIterator[str]:
        if stdio:
            async with before({"command": self.stdio[0], "args": list(self.stdio[1:])}, {}) as url:
                yield url
            return
        async with self.directly() as direct, before({"url": direct}, {}) as url:
            yield url

    @property
    def ways(self) -> dict[str, bool]:
        """The transports by which the gateway reaches it, and whether each is standard streams."""
        return {"HTTP": False, **({"stdio": True} if self.stdio else {})}


@asynccontextmanager
async def before(server: dict[str, Any], more: dict[str, Any]) -> AsyncIterator[str]:
    """The URL of a gateway in front of a server."""
    async with running_gateway(plain_configuration(server, more)) as gateway:
        await gateway.until_listed()
        if "command" in server:
            await programs_started(gateway)
        yield gateway.url


def plain_configuration(server: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A configuration that shows the server's tools under their own names."""
    scope = {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}
    return {"schema": 1, "servers": {"everything": server}, "scopes": {"default": scope}, **more}


@asynccontextmanager
async def directly() -> AsyncIterator[str]:
    async with replace(ARRANGEMENTS[0], options=()).server() as entry:
        yield entry["url"]


_PYTHON = str(HOME / "official23/bin/python")
OFFICIAL = (
    Official(
        "the official Python everything-server",
        "official23",
        (_PYTHON, "-m", "mcp_everything_server", "--port", "{port}", "--log-level", "ERROR"),
        (_PYTHON, "-c", "from mcp_everything_server.server import mcp; mcp.run('stdio')"),
    ),
    Official(
        "the official TypeScript everything-server",
        "official-ts2",
        (str(HOME / "node"), str(HOME / "official-ts2/everything_server.ts")),
        # It requests a pause of 5 s before a reconnect, which the gateway observes, and the suite waits no longer than that.
        undecided=frozenset({"server-sse-polling:server-sse-disconnect-resume/ServerDisconnectResume"}),
    ),
)

ARRANGEMENTS = (
    Arrangement("an HTTP upstream that speaks both generations"),
    Arrangement("a stdio upstream that speaks both generations", stdio=True),
    Arrangement("an HTTP upstream of 2025-11-25 without tasks", ("--only", "2025", "--without-tasks"), own_tasks=True),
    Arrangement("an HTTP upstream of 2026-07-28 without tasks", ("--only", "2026", "--without-tasks"), own_tasks=True),
)
# Taskgate promotes what takes long and runs these as tasks from the start, as the suite expects of them.
OWN_TASKS: dict[str, Any] = {
    "governance": {"force_required": ["failing_job", "protocol_error_job", "confirm_delete", "multi_input"]},
    "tasks": {"grace_ms": 400, "promote_after_ms": 400},
}
