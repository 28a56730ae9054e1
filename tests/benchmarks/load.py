"""A load client for MCP over streamable HTTP: one keep-alive connection per worker, no SDK, no HTTP library.

Every answer must hold the nonce of its own request, so a crossed answer counts as an error. With `--ask` each call is
answered only after the client has answered a form. Prints one JSON line; `relay.py` starts it in its own process, so
that its own work is not measured as the relay's. Point it only at your own machine.

    python tests/benchmarks/load.py http://127.0.0.1:9101/mcp --concurrency 16 --seconds 3 --generation 2026
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
import urllib.parse
from typing import Any

import httptools
import msgspec
import uvloop

VERSIONS = {"2025": "2025-11-25", "2026": "2026-07-28"}
ANSWER_DEADLINE = 30.0
ENOUGH_ERRORS = 100
Reply = tuple[int, dict[bytes, bytes], bytes]


class Connection(asyncio.Protocol):
    """One connection with at most one request in flight; `arrived` also sees the parts of an unfinished answer."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.reply: asyncio.Future[Reply] | None = None
        self.arrived: Any = None
        self.lost = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)
        if self.arrived is not None:
            self.arrived(data)

    def on_message_complete(self) -> None:
        outcome = (self.parser.get_status_code(), self.headers, b"".join(self.parts))
        self.parts, self.headers = [], {}
        reply, self.reply = self.reply, None
        if reply is not None and not reply.done():
            reply.set_result(outcome)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(ConnectionError("connection lost"))


class Worker:
    """One caller: its session, its connections, its running number."""

    def __init__(self, number: int, chosen: argparse.Namespace) -> None:
        self.number, self.chosen, self.count = number, chosen, 0
        self.url = urllib.parse.urlsplit(chosen.url)
        self.stateless = chosen.generation == "2026"
        self.version = VERSIONS[chosen.generation]
        self.connection: Connection | None = None
        self.side: Connection | None = None
        self.headers = ""
        self.authorization = f"authorization: Bearer {chosen.token}\r\n" if chosen.token else ""
        self.capabilities: dict[str, Any] = {"elicitation": {}} if chosen.ask else {}

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, self.url.hostname, self.url.port))[1]

    async def post(self, payload: Any, headers: str = "", arrived: Any = None) -> Reply:
        if self.connection is None or self.connection.lost:
            self.connection = await self.connect()
        self.connection.arrived = arrived
        return await self.send(self.connection, payload, headers)

    async def send(self, connection: Connection, payload: Any, headers: str) -> Reply:
        body = msgspec.json.encode(payload)
        head = (
            f"POST {self.url.path or '/'} HTTP/1.1\r\nhost: {self.url.hostname}:{self.url.port}\r\n"
            f"content-type: application/json\r\naccept: application/json, text/event-stream\r\n{self.authorization}{headers}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        connection.reply = asyncio.get_running_loop().create_future()
        connection.transport.write(head.encode() + body)
        async with asyncio.timeout(ANSWER_DEADLINE):
            return await connection.reply

    async def open(self) -> None:
        if self.stateless:
            return
        info = {"name": "load", "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": info}
        status, headers, body = await self.post(request(0, "initialize", params))
        if status != 200 or b'"result"' not in body:
            raise SystemExit(f"initialize failed: {status} {body[:300]!r}")
        session = headers.get(b"mcp-session-id")
        self.headers = f"mcp-protocol-version: {self.version}\r\n"
        self.headers += f"mcp-session-id: {session.decode()}\r\n" if session else ""
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, self.headers)

    async def call(self) -> tuple[bool, bytes]:
        self.count += 1
        nonce = f"nonce-{self.number}-{self.count}-end"
        arguments: dict[str, Any] = {"text": nonce} | ({"fill": self.chosen.fill} if self.chosen.fill else {})
        params: dict[str, Any] = {"name": self.chosen.tool, "arguments": arguments}
        headers = self.headers
        if self.stateless:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": self.version,
                "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            }
            headers = f"mcp-protocol-version: {self.version}\r\nmcp-method: tools/call\r\n"
            headers += f"mcp-name: {self.chosen.tool}\r\n"
        arrived = self.answer_question if self.chosen.ask and not self.stateless else None
        status, _, body = await self.post(request(self.count, "tools/call", params), headers, arrived)
        if self.stateless and b'"input_required"' in body:
            status, body = await self.retry(params, body, headers)
        return status == 200 and nonce.encode() in body, body

    async def retry(self, params: dict[str, Any], body: bytes, headers: str) -> tuple[int, bytes]:
        """Answer every form of an `input_required` result and send the call again."""
        result = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["result"]
        answers = {key: {"action": "accept", "content": {"answer": "yes"}} for key in result["inputRequests"]}
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        again = request(f"{self.count}-again", "tools/call", {**params, "inputResponses": answers, **state})
        status, _, body = await self.post(again, headers)
        return status, body

    def answer_question(self, data: bytes) -> None:
        """A pushed form on the event stream of the call: answered on a second connection."""
        for line in data.split(b"\n"):
            if line.startswith(b"data:") and b'"elicitation/create"' in line:
                asked = json.loads(line[5:])
                self.answering = asyncio.ensure_future(self.send_answer(asked["id"]))

    async def send_answer(self, number: Any) -> None:
        if self.side is None or self.side.lost:
            self.side = await self.connect()
        result = {"action": "accept", "content": {"answer": "yes"}}
        await self.send(self.side, {"jsonrpc": "2.0", "id": number, "result": result}, self.headers)


def request(number: Any, method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def drive(chosen: argparse.Namespace) -> dict[str, Any]:
    """Warm up, then call for the given time, and report."""
    workers = [Worker(number, chosen) for number in range(chosen.concurrency)]
    for worker in workers:
        await worker.open()
    for _ in range(5):
        await asyncio.gather(*(worker.call() for worker in workers))
    latencies: list[float] = []
    errors: list[str] = []
    if chosen.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    started = time.perf_counter()
    end, share = started + chosen.seconds, chosen.calls // chosen.concurrency
    print("started", flush=True)

    async def run(worker: Worker) -> None:
        for _ in range(share) if share else itertools.count():
            begin = time.perf_counter()
            if (not share and begin >= end) or len(errors) >= chosen.errors:
                return
            try:
                right, body = await worker.call()
            except (OSError, TimeoutError) as error:
                right, body = False, repr(error).encode()
            if right:
                latencies.append(time.perf_counter() - begin)
            else:
                errors.append(body[:200].decode("latin1"))

    await asyncio.gather(*(run(worker) for worker in workers))
    return summary(latencies, errors, time.perf_counter() - started)


def summary(latencies: list[float], errors: list[str], elapsed: float) -> dict[str, Any]:
    latencies.sort()

    def quantile(share: float) -> float | None:
        if not latencies:
            return None
        return round(latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000, 4)

    return {
        "calls": len(latencies),
        "per_second": round(len(latencies) / elapsed, 1),
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--calls", type=int, default=0, help="end after this many calls instead")
    parser.add_argument("--errors", type=int, default=ENOUGH_ERRORS, help="end after this many errors")
    parser.add_argument("--wait", action="store_true", help="begin when a line arrives on standard input")
    parser.add_argument("--generation", choices=sorted(VERSIONS), default="2025")
    parser.add_argument("--tool", default="echo")
    parser.add_argument("--token", default="", help="the credential to send with each request")
    parser.add_argument("--fill", type=int, default=0, help="extra bytes in each result")
    parser.add_argument("--ask", action="store_true", help="the tool asks a form before it answers")
    print(json.dumps(uvloop.run(drive(parser.parse_args()))))


if __name__ == "__main__":
    main()
