"""`make fuzz`: corrupted frames in each of the four directions, with checks that the gateway keeps serving.

Callers send them over HTTP and stdio; upstreams answer with them over HTTP and stdio. After every thousand frames a
good call must be answered within a second. It fails on a crash, a wait of more than five seconds, an HTTP 500, or
memory that grows by more than 50 MB.

    python -m tests.chaos.fuzz [--frames 100000] [--seed 1] [--direction caller-http]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import resident_kb
from tests.benchmarks.targets import echo_server
from tests.chaos.frames import CALLER_FRAMES, HELLO, echo, request
from tests.chaos.mutations import Mutator
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running

ROOT = Path(__file__).resolve().parent.parent.parent
HANG, GOOD_CALL, GROWTH_KB, EVERY, WORKERS = 5.0, 1.0, 50 * 1024, 1000, 8
STDIO_LINES = 50
NO_HTTP = 0.01


class Broken(Exception):
    """The gateway violated a requirement; the message has the violation and the frame before it."""


class HttpCaller:
    """One keep-alive connection that sends bodies as they are and reads the head of every answer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, raw: bytes) -> tuple[int, bytes]:
        """The status and body of the answer; (0, b"") when the gateway hung up, which it may on bad HTTP."""
        for attempt in (1, 2):
            fresh = self.streams is None
            if self.streams is None:
                self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
            try:
                async with asyncio.timeout(HANG):
                    return await self.exchange(raw)
            except TimeoutError:
                self.close()
                raise Broken(f"no answer within {HANG} s to {raw[:600]!r}") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                if fresh or attempt == 2:
                    return 0, b""
        return 0, b""

    async def send_garbage(self, raw: bytes) -> None:
        """Send what is no HTTP and hang up: the gateway may answer, close, or wait for the rest of it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.02):
                await reader.read(1000)
        writer.close()

    async def exchange(self, raw: bytes) -> tuple[int, bytes]:
        assert self.streams is not None
        reader, writer = self.streams
        writer.write(raw)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        body = b""
        if b"content-length:" in head:
            body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        elif b"chunked" in head:
            # A stream may stay open by design; its head is answer enough.
            self.close()
        if b"connection: close" in head:
            self.close()
        return status, body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def posted(body: bytes, headers: dict[str, str], method: str = "POST", path: str = "/mcp") -> bytes:
    basic = {"host": "127.0.0.1", "content-type": "application/json", "accept": "application/json, text/event-stream"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**basic, **headers}.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode("latin1") + body


STATELESS_HEADERS = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "good__echo"}


async def good_call(gateway: Gateway) -> None:
    """A valid call is answered meanwhile."""
    caller = HttpCaller(gateway.port)
    started = time.monotonic()
    status, body = await caller.send(posted(json.dumps(echo("still here", True)).encode(), STATELESS_HEADERS))
    took = time.monotonic() - started
    caller.close()
    if status != 200 or b"still here" not in body or took > GOOD_CALL:
        raise Broken(f"a good call got {status} {body[:300]!r} after {took:.2f} s")


class Watch:
    """Counts frames, makes the valid call, and monitors the process."""

    def __init__(self, gateway: Gateway, wanted: int) -> None:
        self.gateway, self.wanted, self.count = gateway, wanted, 0
        self.base: int | None = None
        self.started = time.monotonic()
        self.lock = asyncio.Lock()
        self.answers: Counter[int] = Counter()

    def check_reply(self, status: int, body: bytes, before: bytes) -> None:
        """Note the status of an answer; 500 means that this frame is not handled."""
        self.answers[status] += 1
        if status == 500:
            raise Broken(f"HTTP 500 {body[:300]!r} to {before[:800]!r}")

    def take(self, frames: int = 1) -> bool:
        self.count += frames
        return self.count <= self.wanted

    async def look(self) -> None:
        async with self.lock:
            if not (self.gateway.program and self.gateway.program.alive):
                raise Broken(f"the gateway died:\n{self.gateway.log[-3000:]}")
            await good_call(self.gateway)
            weight = resident_kb(self.gateway.pid)
            if self.base is None or self.count < min(5000, self.wanted / 5):
                self.base = weight
            if weight - self.base > GROWTH_KB:
                raise Broken(f"memory grew from {self.base // 1024} to {weight // 1024} MB in {self.count} frames")

    def summary(self, direction: str) -> str:
        grown = (resident_kb(self.gateway.pid) - (self.base or 0)) / 1024
        took = time.monotonic() - self.started
        answers = ", ".join(f"{count} x {status or 'closed'}" for status, count in sorted(self.answers.items()))
        frames = min(self.count, self.wanted)
        return f"{direction}: {frames} frames in {took:.0f} s, memory {grown:+.1f} MB: held ({answers})"


async def caller_http(frames: int, seed: int) -> str:
    """Callers send spoiled bodies, headers and, now and then, something that is no HTTP at all."""
    async with gateway_with({}) as gateway:
        watch = Watch(gateway, frames)
        session = await open_session(gateway)

        async def work(number: int) -> None:
            mutator, chance = Mutator(CALLER_FRAMES, seed * 100 + number), random.Random(seed * 100 + number)
            caller = HttpCaller(gateway.port)
            while watch.take():
                if chance.random() < NO_HTTP:
                    await caller.send_garbage(mutator.break_text(posted(mutator.frame(), {})[:80]) + b"\r\n\r\n")
                    continue
                raw = spoiled_request(mutator, chance, session)
                status, body = await caller.send(raw)
                watch.check_reply(status, body, raw)
                if watch.count % EVERY == 0:
                    await watch.look()
            caller.close()

        await all_of(work(number) for number in range(WORKERS))
        await watch.look()
        return watch.summary("caller-http")


def spoiled_request(mutator: Mutator, chance: random.Random, session: str) -> bytes:
    """A spoiled body with headers that mostly fit it, so that it gets past the transport and has to be understood."""
    body = mutator.frame()
    headers = fitting_headers(body, session) if chance.random() < 0.85 else {}
    if chance.random() < 0.1:
        name = chance.choice(("content-type", "accept", "mcp-session-id", "mcp-protocol-version", "mcp-name", "origin"))
        headers[name] = chance.choice(("", "nonsense", "=?base64?!!?=", "x" * 3000, "é", "*/*", "http://evil.test"))
    if chance.random() < 0.02:
        return posted(body, {}, chance.choice(("PUT", "PATCH", "DELETE", "OPTIONS")), "/mcp")
    if chance.random() < 0.02:
        return posted(body, headers, "POST", chance.choice(("/", "/mcp/none", "/mcp/%00", "//mcp", "/mcp?servers=%ff")))
    return posted(body, headers)


def fitting_headers(body: bytes, session: str) -> dict[str, str]:
    """What an honest client would send with this body."""
    if b"io.modelcontextprotocol/protocolVersion" not in body:
        return {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    try:
        message = json.loads(body)
        method, params = message["method"], message["params"]
        name = params.get("name") or params.get("uri") or params.get("taskId")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        method, name = "tools/call", "good__echo"
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": name}
    return {key: value for key, value in headers.items() if isinstance(value, str) and printable(value)}


def printable(value: str) -> bool:
    return value.isascii() and value.isprintable()


async def open_session(gateway: Gateway) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(posted(json.dumps(request("initialize", **HELLO)).encode(), {}))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    start = head.lower().index(b"mcp-session-id:") + len(b"mcp-session-id:")
    return head[start:].split(b"\r\n")[0].strip().decode()


async def caller_stdio(frames: int, seed: int) -> str:
    """A caller writes spoiled lines to a gateway on standard input; its good lines are still answered."""
    async with echo_server() as upstream, running_gateway(configuration({}, upstream)) as model:
        own = Gateway(model.folder / "stdio", 0)
        own.folder.mkdir()
        own.write(configuration({}, upstream))
        program, *arguments = own.stdio_command("--alone")
        child = await asyncio.create_subprocess_exec(
            program, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=2**24,
        )  # fmt: skip
        try:
            return await stdio_conversation(child, frames, seed)
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()


async def stdio_conversation(child: asyncio.subprocess.Process, frames: int, seed: int) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    mutator, started, base = Mutator(CALLER_FRAMES, seed), time.monotonic(), 0
    for count in range(1, frames + 1):
        child.stdin.write(mutator.frame().replace(b"\n", b" ") + b"\n")
        if count % 100 == 0:
            await child.stdin.drain()
        if count % EVERY == 0 or count == frames:
            await good_line(child, f"still here {count}")
            base = base if count > frames / 5 and base else resident_kb(child.pid)
            if resident_kb(child.pid) - base > GROWTH_KB:
                raise Broken(f"memory grew by {(resident_kb(child.pid) - base) // 1024} MB in {count} frames")
    grown = (resident_kb(child.pid) - base) / 1024
    return f"caller-stdio: {frames} frames in {time.monotonic() - started:.0f} s, memory {grown:+.1f} MB: held"


async def good_line(child: asyncio.subprocess.Process, words: str) -> None:
    """Discard earlier replies, then send a valid request, which must be answered immediately."""
    assert child.stdin is not None
    assert child.stdout is not None
    for deadline, text in ((60.0, f"catch up, {words}"), (GOOD_CALL, words)):
        child.stdin.write(json.dumps(echo(text, True) | {"id": text}).encode() + b"\n")
        try:
            async with asyncio.timeout(deadline):
                while True:
                    line = await child.stdout.readline()
                    if not line:
                        raise Broken(f"the gateway on stdio ended with code {child.returncode}")
                    if text.encode() in line and b'"result"' in line:
                        break
        except TimeoutError:
            raise Broken(f"a good line was not answered within {deadline} s") from None


async def upstream_http(frames: int, seed: int) -> str:
    """An upstream answers calls with spoiled HTTP answers and event streams."""
    port = free_port()
    command = [sys.executable, "-m", "tests.chaos.hostile_upstream", "--http", str(port), "--seed", str(seed)]
    async with running(command, listening(port), {"PYTHONPATH": pythonpath()}):
        return await call_hostile({"evil": {"url": f"http://127.0.0.1:{port}/mcp"}}, frames, 1, "upstream-http")


async def upstream_stdio(frames: int, seed: int) -> str:
    """A child writes spoiled lines around its answers."""
    arguments = ["-m", "tests.chaos.hostile_upstream", "--stdio", "--seed", str(seed), "--lines", str(STDIO_LINES)]
    server = {"command": sys.executable, "args": arguments, "env": {"PYTHONPATH": pythonpath()}}
    return await call_hostile({"evil": server}, frames, STDIO_LINES, "upstream-stdio")


async def call_hostile(servers: dict[str, Any], frames: int, per_call: int, direction: str) -> str:
    async with gateway_with(servers) as gateway:
        watch = Watch(gateway, frames)
        headers = STATELESS_HEADERS | {"mcp-name": "evil__echo"}
        checked = 0

        async def work(number: int) -> None:
            nonlocal checked
            caller = HttpCaller(gateway.port)
            while watch.take(per_call):
                raw = posted(json.dumps(echo(f"to {number}", True, "evil__echo")).encode(), headers)
                status, body = await caller.send(raw)
                watch.check_reply(status, body, raw)
                if watch.count // EVERY > checked:
                    checked = watch.count // EVERY
                    await watch.look()
            caller.close()

        await all_of(work(number) for number in range(WORKERS))
        await watch.look()
        return watch.summary(direction)


def pythonpath() -> str:
    return ":".join(str(place) for place in (ROOT, *filter(None, sys.path)))


def configuration(servers: dict[str, Any], upstream: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": {"good": {"url": upstream}, **servers},
        "telemetry": {"log_level": "error"},
        "limits": {"open_tasks_per_caller": 200},
    }


@asynccontextmanager
async def gateway_with(servers: dict[str, Any]) -> AsyncIterator[Gateway]:
    async with echo_server() as upstream, running_gateway(configuration(servers, upstream)) as gateway:
        await good_call_eventually(gateway)
        yield gateway


async def good_call_eventually(gateway: Gateway) -> None:
    """The first call also starts the upstreams and performs handshakes, so it may take longer."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return await good_call(gateway)
        except Broken:
            if time.monotonic() > deadline:
                raise


async def all_of(works: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


DIRECTIONS = {
    "caller-http": caller_http,
    "caller-stdio": caller_stdio,
    "upstream-http": upstream_http,
    "upstream-stdio": upstream_stdio,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--direction", action="append", choices=DIRECTIONS)
    chosen = parser.parse_args()
    failed = False
    for name in chosen.direction or DIRECTIONS:
        try:
            print(asyncio.run(DIRECTIONS[name](chosen.frames, chosen.seed)), flush=True)
        except* Broken as group:
            failed = True
            for reason in group.exceptions:
                print(f"{name}: BROKEN: {reason}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
