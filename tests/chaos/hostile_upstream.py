"""An upstream that introduces itself well and then answers calls with spoiled frames, over HTTP or stdio.

    python -m tests.chaos.hostile_upstream --http 9300 --seed 7
    python -m tests.chaos.hostile_upstream --stdio --seed 7 --lines 50

Over HTTP one call gets one spoiled answer: as JSON, as an event stream, cut short, or with a wrong length. Over stdio
one call gets many spoiled lines and then, usually, its good answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import Any

from tests.chaos.frames import INFO, TOOL, UPSTREAM_FRAMES
from tests.chaos.mutations import Mutator

Wire = dict[str, Any]
STATELESS = "2026-07-28"
FRESH = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}


def good_answer(message: Wire) -> Wire | None:
    """The regular reply of this server; None for a notification."""
    if "id" not in message:
        return None
    stateless = STATELESS in json.dumps((message.get("params") or {}).get("_meta") or {})
    extra = FRESH if stateless else {}
    capabilities = {"capabilities": {"tools": {"listChanged": True}}}
    match message.get("method"):
        case "initialize":
            result: Wire = {"protocolVersion": "2025-11-25", **capabilities, "serverInfo": INFO}
        case "server/discover" if stateless:
            result = {"supportedVersions": [STATELESS], **capabilities, **extra}
        case "tools/list":
            result = {"tools": [TOOL], **extra}
        case "tools/call":
            text = ((message.get("params") or {}).get("arguments") or {}).get("text", "")
            result = {"content": [{"type": "text", "text": text}], **({"resultType": "complete"} if stateless else {})}
        case "ping":
            result = {}
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def spoiled(mutator: Mutator, number: Any) -> bytes:
    """A bad frame that often pretends to answer this very request."""
    frame = mutator.frame()
    return frame.replace(b'"id": %d' % mutator.count, b'"id": ' + json.dumps(number).encode(), 1)


class Http:
    """Just enough HTTP to be called: one request at a time on each connection."""

    def __init__(self, seed: int) -> None:
        self.mutator, self.random = Mutator(UPSTREAM_FRAMES, seed), random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
                body = await reader.readexactly(length)
                if not head.startswith(b"post"):
                    writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
                    continue
                if not self.answer(json.loads(body), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, message: Wire, writer: asyncio.StreamWriter) -> bool:
        """Write one answer; False when the connection must be dropped after it."""
        good = good_answer(message)
        if good is None:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return True
        if message.get("method") != "tools/call":
            writer.write(as_json(json.dumps(good).encode()))
            return True
        bad = spoiled(self.mutator, message["id"])
        match self.random.randrange(40):
            case 0:
                writer.write(as_json(bad)[: -self.random.randrange(1, 20)])
                return False
            case 1:
                writer.write(bad[:200])
                return False
            case number if number < 10:
                writer.write(as_stream(bad, json.dumps(good).encode()))
            case number if number < 20:
                writer.write(as_stream(bad))
            case _:
                writer.write(as_json(bad))
        return True


def as_json(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def as_stream(*messages: bytes) -> bytes:
    body = b"".join(b"event: message\r\ndata: " + one.replace(b"\n", b" ") + b"\r\n\r\n" for one in messages)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


async def serve_http(port: int, seed: int) -> None:
    server = await asyncio.start_server(Http(seed).serve, "127.0.0.1", port, limit=2**22)
    await server.serve_forever()


def serve_stdio(seed: int, lines: int) -> None:
    mutator, choice = Mutator(UPSTREAM_FRAMES, seed), random.Random(seed)
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        good = good_answer(message)
        if message.get("method") == "tools/call":
            for _ in range(lines):
                out.write(spoiled(mutator, choice.choice((message["id"], mutator.count, "x"))) + b"\n")
        if good is not None:
            out.write(json.dumps(good).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=50)
    chosen = parser.parse_args()
    asyncio.run(serve_http(chosen.http, chosen.seed)) if chosen.http else serve_stdio(chosen.seed, chosen.lines)
