"""Servers and hosts of skills by others: TypeScript SDK, FastMCP, the Inspector and the official conformance suite, directly and
through the gateway.

One run has two servers and two hosts; the others, with every transport and tool, are for `make extensions`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.suite import SUITE, Verdicts, failures, losses, read_verdicts
from tests.harness.absent import HOME
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.node_reuse import NODE_AGAIN
from tests.harness.peers import PROGRAMS, interpreter
from tests.harness.programs import START_DEADLINE, free_port, listening, run_to_end, running

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("ts2", "fastmcp")]
SCENARIOS = ("sep-2640-skills-enumeration", "sep-2640-skills-manifest", "sep-2640-skills-directory")


@dataclass(frozen=True, slots=True)
class SkillServer:
    name: str
    program: tuple[str, ...]

    def stdio(self, folder: Path) -> dict[str, Any]:
        command, *arguments = self.program
        return {"command": command, "args": [*arguments, str(folder)]}

    @asynccontextmanager
    async def http(self, folder: Path) -> AsyncIterator[str]:
        port = free_port()
        async with running([*self.program, str(folder), str(port)], listening(port)):
            yield f"http://127.0.0.1:{port}/mcp"


TS2 = SkillServer("ts2", (str(HOME / "node"), str(PROGRAMS / "skills_server_ts2.mjs")))
FASTMCP = SkillServer("fastmcp", (str(interpreter("fastmcp")), str(PROGRAMS / "skills_server_fastmcp.py")))
SERVERS = pytest.mark.parametrize("server", [TS2, FASTMCP], ids=lambda server: server.name)


def skills_in(folder: Path, *names: str) -> Path:
    for name in names:
        root = folder / name
        (root / "references").mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: How to do {name}\nlicense: MIT\n---\n# {name} of {folder.name}\n"
        (root / "SKILL.md").write_text(text)
        (root / "references" / "POLICY.md").write_text(f"Policy of {folder.name}: thirty days.\n")
    return folder


async def listed(gateway: Gateway, config: dict[str, Any]) -> None:
    """Until each server is listed: a program may take longer to start than a client. The log is read, not the lists: an address
    that callers were given keeps its meaning when another server comes with the same one."""
    async with asyncio.timeout(START_DEADLINE):
        while gateway.log.count("server listed") < len(config["servers"]):
            await asyncio.sleep(0.1)


async def by_ts2(url: str) -> dict[str, Any]:
    """What the TypeScript SDK's own host sees; it verifies size, digest and frontmatter of every file."""
    code, out, err = await NODE_AGAIN.run(PROGRAMS / "skills_host_ts2.mjs", [url], within=90)
    assert code == 0, err[-3000:]
    seen: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    assert seen["supported"] is True
    assert all(file["verified"] for files in seen["skills"].values() for file in files.values())
    return seen


async def by_fastmcp(url: str) -> dict[str, Any]:
    command: list[str | Path] = [interpreter("fastmcp"), PROGRAMS / "skills_host_fastmcp.py", url]
    code, out, err = await run_to_end(command, within=90)
    assert code == 0, err[-3000:]
    seen: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    assert all(file["verified"] for files in seen.values() for file in files.values())
    return seen


async def by_inspector(url: str, era: str) -> str:
    program = HOME / "inspector" / "node_modules" / ".bin" / "mcp-inspector"
    words = ["--cli", url, "--transport", "http", "--protocol-era", era, "--method", "skills/list", "--verify"]
    code, out, err = await run_to_end([HOME / "node", program.resolve(), *words], within=120)
    assert code == 0, (out + err)[-3000:]
    return out + err


@pytest.mark.long
@SERVERS
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_hosts_see_the_same_skills_through_the_gateway(
    tmp_path: Path, server: SkillServer, transport: str
) -> None:
    folder = skills_in(tmp_path / "skills", "refunds", "reports")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.http(folder))
        reached = {"url": url} if transport == "http" else server.stdio(folder)
        config = {"servers": {"one": reached}, "limits": {"drain_timeout": "1s"}}
        gateway = await stack.enter_async_context(running_gateway(config, tmp_path / "gateway"))
        await listed(gateway, config)
        directly, through = await by_ts2(url), await by_ts2(gateway.url)
        assert through["skills"] == directly["skills"]
        assert through["got"] == directly["got"]
        assert set(directly["skills"]) == {"skill://refunds/SKILL.md", "skill://reports/SKILL.md"}
        if directly["directories"]:
            assert through["folders"] == directly["folders"]
        assert through["folders"]["skill://refunds"] == ["skill://refunds/SKILL.md", "skill://refunds/references"]
        assert await by_fastmcp(gateway.url) == await by_fastmcp(url)


@asynccontextmanager
async def colliding_skills(folder: Path) -> AsyncIterator[str]:
    """A gateway before two servers with a skill of the same name; one of them is a program on standard streams."""
    one, two = skills_in(folder / "one", "refunds"), skills_in(folder / "two", "refunds", "reports")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(TS2.http(one))
        config = {"servers": {"one": {"url": url}, "two": FASTMCP.stdio(two)}, "limits": {"drain_timeout": "1s"}}
        gateway = await stack.enter_async_context(running_gateway(config, folder / "gateway"))
        await listed(gateway, config)
        yield gateway.url


def are_distinguished(skills: dict[str, Any]) -> bool:
    assert set(skills) == {
        "skill://one.taskgate/refunds/SKILL.md",
        "skill://two.taskgate/refunds/SKILL.md",
        "skill://reports/SKILL.md",
    }
    policy = skills["skill://two.taskgate/refunds/SKILL.md"]["skill://two.taskgate/refunds/references/POLICY.md"]
    return bool(policy["text"] == "Policy of two: thirty days.\n")


async def test_a_host_verifies_colliding_skills_of_two_servers(tmp_path: Path) -> None:
    async with colliding_skills(tmp_path) as url:
        assert are_distinguished((await by_ts2(url))["skills"])


@pytest.mark.long
async def test_hosts_agree_on_colliding_skills(tmp_path: Path) -> None:
    async with colliding_skills(tmp_path) as url:
        skills = await by_fastmcp(url)
        assert are_distinguished(skills)
        assert (await by_ts2(url))["skills"] == skills


@pytest.mark.long
@pytest.mark.peers("inspector")
@SERVERS
async def test_the_inspector_verifies_skills_through_the_gateway(tmp_path: Path, server: SkillServer) -> None:
    folder = skills_in(tmp_path / "skills", "refunds")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.http(folder))
        config = {"servers": {"one": {"url": url}}, "limits": {"drain_timeout": "1s"}}
        gateway = await stack.enter_async_context(running_gateway(config, tmp_path / "gateway"))
        await listed(gateway, config)
        # FastMCP has the extension in the stateless generation only; the gateway offers it to callers of both.
        runs = [(gateway.url, "legacy"), (gateway.url, "modern"), (url, "modern")]
        for target, era in runs if server is FASTMCP else [*runs, (url, "legacy")]:
            assert "Verified 1 skill and 2 files" in await by_inspector(target, era)


@pytest.mark.long
@pytest.mark.peers("conformance")
@SERVERS
async def test_conformance_of_skills_is_the_same_through_the_gateway(tmp_path: Path, server: SkillServer) -> None:
    folder = skills_in(tmp_path / "skills", "refunds", "reports")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.http(folder))
        config = {"servers": {"one": {"url": url}}, "limits": {"drain_timeout": "1s"}}
        gateway = await stack.enter_async_context(running_gateway(config, tmp_path / "gateway"))
        await listed(gateway, config)
        directly, through = await verdicts(url), await verdicts(gateway.url)
        assert losses(directly, through) == {}
        assert failures(through).keys() <= failures(directly).keys()
        assert sum(verdict.status == "SUCCESS" for verdict in through.values()) >= 25


async def verdicts(url: str) -> Verdicts:
    found: Verdicts = {}
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="conformance-") as kept:
            words = ["server", "--url", url, "--scenario", scenario, "--output-dir", kept]
            await NODE_AGAIN.run(SUITE, words, within=120)
            found |= read_verdicts(Path(kept))
    assert found
    return found
