"""Scopes on a running gateway: listing 1,000 tools, reloading 1,000 records under load, and what a scope saves a model.

The decision itself is measured in `scoping.py`; here a real `taskgate serve` answers over HTTP. Run with
`python tests/benchmarks/scopes.py [list] [reload] [overload] [tokens]`; prints one line per measurement and ends
non-zero if a limit is missed. The tokens part needs `python tools/peers.py --only catalog` and prints that it is absent if it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.one_reply_server import compact

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.harness.absent import HOME, reason_for  # noqa: E402
from tests.harness.gateway import Gateway, running_gateway  # noqa: E402
from tests.harness.programs import free_port  # noqa: E402
from tests.scopes.scope_client import STATEFUL, STATELESS, ScopeClient, opened, scope, server  # noqa: E402

RECORDS = 1000
LISTED, LISTS = 1000, 200
BYTES_A_TOKEN = 4
KEYS = {
    "gitlab": {"GITLAB_PERSONAL_ACCESS_TOKEN": "none"},
    "slack": {"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "none"},
    "brave-search": {"BRAVE_API_KEY": "none"},
    "google-maps": {"GOOGLE_MAPS_API_KEY": "none"},
    "everart": {"EVERART_API_KEY": "none"},
}
REAL = (
    "everything",
    "filesystem",
    "memory",
    "sequential-thinking",
    "github",
    "gitlab",
    "slack",
    "brave-search",
    "google-maps",
    "everart",
)


async def exchange(port: int, request: bytes) -> float:
    """Milliseconds of one request on a new connection, from the first byte sent to the last received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    took = time.perf_counter() - began
    writer.close()
    return took * 1000


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def list_request(port: int) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    }
    body = compact({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nMcp-Method: tools/list\r\n"
    )
    head += f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {STATELESS}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def listing() -> bool:
    """`tools/list` of 1,000 tools against the same bytes from a server that has them ready in memory."""
    servers = {f"s{n}": server(f"s{n}", *(f"tool_{i}" for i in range(LISTED // 4))) for n in range(4)}
    async with running_gateway({"schema": 1, "servers": servers, "scopes": {"default": scope("*")}}) as gateway:
        async with opened(gateway.url, STATELESS) as caller:
            reply = await caller.ask("tools/list")
            assert len(reply.result["tools"]) == LISTED
        body = compact(reply.message)
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

        async def ready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(answer)
            await writer.drain()
            writer.close()

        port = free_port()
        cached = await asyncio.start_server(ready, "127.0.0.1", port)
        before = processor_seconds(gateway.pid)
        through = [await exchange(gateway.port, list_request(gateway.port)) for _ in range(LISTS)]
        spent = (processor_seconds(gateway.pid) - before) / LISTS * 1000
        direct = [await exchange(port, list_request(port)) for _ in range(LISTS)]
        cached.close()
    above = statistics.median(through) - statistics.median(direct)
    print(
        f"tools/list of {LISTED} tools ({len(body) // 1024} KiB): {statistics.median(through):.2f} ms through the "
        f"gateway, {statistics.median(direct):.2f} ms from memory: {above:.2f} ms above (limit 5); "
        f"{spent:.2f} ms of the gateway's processor time each"
    )
    return above <= 5


def write_records(folder: Path, count: int, tag: str) -> None:
    for number in range(count):
        record = {
            "url": f"http://127.0.0.1:9/{number}",
            "allowed_tools": ["read_*", "list_*"],
            "tags": [f"t{number % 10}", tag],
            "budgets": {"tool_timeout_ms": 60000, "max_concurrency": 8},
        }
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in record.items())
        (folder / f"record{number}.yaml").write_text(text)


async def keep_calling(client: ScopeClient, stop: asyncio.Event, took: list[float], failed: list[str]) -> None:
    while not stop.is_set():
        began = time.perf_counter()
        reply = await client.call("live__read")
        took.append(time.perf_counter() - began)
        if reply.message.get("result", {}).get("isError", True):
            failed.append(json.dumps(reply.message)[:300])


def count_logged(gateway: Gateway, text: str) -> int:
    return (gateway.folder / "gateway.log").read_text().count(text)


async def until_logged(gateway: Gateway, text: str, times: int) -> float:
    async with asyncio.timeout(60):
        while count_logged(gateway, text) < times:
            await asyncio.sleep(0.005)
    return time.perf_counter()


async def reload_once(gateway: Gateway) -> float:
    """Seconds from the signal to the new plan. The change is noticed a second time by the watcher; that is waited for."""
    before = count_logged(gateway, "configuration reloaded")
    began = time.perf_counter()
    os.kill(gateway.pid, signal.SIGHUP)
    spent = await until_logged(gateway, "configuration reloaded", before + 1) - began
    await until_logged(gateway, "configuration reloaded", before + 2)
    return spent


async def reloading() -> bool:
    """1,000 records taken in while eight callers never stop calling: first all of them new, then one of them."""
    folder = Path(tempfile.mkdtemp(prefix="scopes-"))

    def config(registry: str) -> dict[str, Any]:
        scopes = {"default": scope("live", allowed_servers=["*"]), "old": {"tags": ["old"]}}
        return {"schema": 1, "registry_dir": registry, "servers": {"live": server("live", "read")}, "scopes": scopes}

    for turn in range(4):
        (folder / f"r{turn}").mkdir()
        write_records(folder / f"r{turn}", RECORDS, f"turn{turn}")
    took: list[float] = []
    failed: list[str] = []
    every: list[float] = []
    single: list[float] = []
    async with running_gateway(config("./r0"), folder) as gateway, opened(gateway.url, STATEFUL) as caller:
        stop = asyncio.Event()
        calling = [asyncio.create_task(keep_calling(caller, stop, took, failed)) for _ in range(8)]
        for turn in range(1, 4):
            gateway.write(config(f"./r{turn}"))
            every.append(await reload_once(gateway))
        for turn in range(3):
            write_records(folder / "r3", 1, f"single{turn}")
            single.append(await reload_once(gateway))
        stop.set()
        await asyncio.gather(*calling)
    print(
        f"reload with {RECORDS} records under load: all new {seconds(every)}, one new {seconds(single)} (limit 1 s); "
        f"{len(took)} calls meanwhile, {len(failed)} dropped, slowest {max(took) * 1000:.0f} ms"
    )
    for text in failed[:3]:
        print(f"  {text}")
    return min(every) <= 1 and not failed


def seconds(measured: list[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in measured) + " s"


async def overload() -> bool:
    """How long a call waits for its refusal when the line is full."""
    busy = server("busy", "slow", budgets={"max_concurrency": 1})
    config = {
        "schema": 1,
        "servers": {"busy": busy},
        "scopes": {"default": scope("*")},
        "limits": {"queue_per_server": 2},
    }
    async with running_gateway(config) as gateway, opened(gateway.url, STATELESS) as caller:
        running = [asyncio.create_task(caller.call("busy__slow", seconds=6)) for _ in range(2)]
        await asyncio.sleep(1)
        took = []
        for _ in range(50):
            began = time.perf_counter()
            refused = await caller.call("busy__slow", seconds=6)
            took.append((time.perf_counter() - began) * 1000)
            assert refused.error["data"]["error_type"] == "overloaded"
        for call in running:
            call.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    took.sort()
    print(f"refusal of a call to a full line: median {took[25]:.1f} ms, slowest {took[-1]:.1f} ms (limit 50)")
    return took[25] <= 50


def real_servers(files: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in REAL:
        program = HOME / "catalog" / "node_modules" / ".bin" / f"mcp-server-{name}"
        arguments = [str(program), *([str(files)] if name == "filesystem" else [])]
        found[name] = {"command": str(HOME / "node"), "args": arguments, "env": KEYS.get(name, {})}
    return found


async def size_of(url: str) -> tuple[int, int]:
    async with opened(url, STATEFUL) as caller:
        tools = (await caller.ask("tools/list")).result["tools"]
        return len(tools), len(json.dumps(tools, separators=(",", ":"), ensure_ascii=False).encode())


async def tokens() -> bool:
    """What a model has to read: the whole catalog of ten real servers, a scope of it, and a search over it."""
    reason = reason_for("catalog")
    if reason is not None:
        print(f"tokens saved: not measured, the ten servers are absent: {reason}")
        return True
    config = {
        "schema": 1,
        "servers": real_servers(Path(tempfile.mkdtemp())),
        "scopes": {
            "default": scope("*"),
            "review": scope("filesystem", "github", tool_allowlist=["read_*", "list_*", "search_*", "get_*"]),
            "find": scope("*", mode="search"),
        },
    }
    async with running_gateway(config) as gateway:
        count, whole = await size_of(gateway.url)
        print(
            f"full catalog of {len(REAL)} real servers: {count} tools, {whole} bytes, about {whole // BYTES_A_TOKEN} tokens"
        )
        for name in ("review", "find"):
            count, size = await size_of(f"{gateway.url}/{name}")
            saved = 100 - 100 * size / whole
            about = size // BYTES_A_TOKEN
            print(f"scope {name!r}: {count} tools, {size} bytes, about {about} tokens: {saved:.1f} % saved")
    return whole > 0


PARTS = {"list": listing, "reload": reloading, "overload": overload, "tokens": tokens}


async def main(chosen: list[str]) -> int:
    good = [await PARTS[name]() for name in chosen or PARTS]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
