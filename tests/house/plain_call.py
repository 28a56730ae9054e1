"""Through how many files and functions one plain call goes, counted in the real gateway: `python -m tests.house.plain_call`.

A caller keeps its connection open and sends compact JSON, as SDKs do; the second of its calls is counted, once everything that
happens only once has happened. Only code of `taskgate` counts, not the standard library, nor what is written in C.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from tests.seam import Call, Gateway, Upstream, run

import taskgate

SOURCE = str(Path(taskgate.__file__).parent) + "/"
VERSIONS = {"2025": "2025-11-25", "2026": "2026-07-28"}
ENVELOPE = "io.modelcontextprotocol/"
WARM_UP = 5


@dataclasses.dataclass(frozen=True)
class Route:
    """What one call went through: calls by file and function."""

    calls: dict[tuple[str, str], int]

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def functions(self) -> int:
        return len(self.calls)

    @property
    def total(self) -> int:
        return sum(self.calls.values())


class Counter:
    """A profile function that counts what is entered; a coroutine that is resumed counts again in the number of calls."""

    def __init__(self) -> None:
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()

    def __call__(self, frame: FrameType, event: str, _value: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            self.calls[code.co_filename.removeprefix(SOURCE), code.co_qualname] += 1


class Caller:
    """One connection that stays open, and the bytes of a plain call on it."""

    def __init__(self, gate: Gateway, generation: str) -> None:
        self._gate, self._version = gate, VERSIONS[generation]
        self._stateless = generation == "2026"
        self._headers = f"mcp-protocol-version: {self._version}\r\n"
        if self._stateless:
            self._headers += "mcp-method: tools/call\r\nmcp-name: notes__echo\r\n"

    async def open(self) -> None:
        self._reader, self._writer = await self._gate.connect()
        if self._stateless:
            return
        info = {"name": "count", "version": "1"}
        params = {"protocolVersion": self._version, "capabilities": {}, "clientInfo": info}
        head, _ = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        session = head.split(b"mcp-session-id: ")[1].split(b"\r\n")[0].strip().decode()
        self._headers += f"mcp-session-id: {session}\r\n"
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def call(self) -> bytes:
        params: dict[str, Any] = {"name": "notes__echo", "arguments": {}}
        if self._stateless:
            params["_meta"] = {
                f"{ENVELOPE}protocolVersion": self._version,
                f"{ENVELOPE}clientInfo": {"name": "count", "version": "1"},
                f"{ENVELOPE}clientCapabilities": {},
            }
        return (await self._post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))[1]

    async def _post(self, message: Any) -> tuple[bytes, bytes]:
        body = msgspec.json.encode(message)
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:7467\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return answer, await self._reader.readexactly(length)

    async def close(self) -> None:
        self._writer.close()
        await asyncio.sleep(0)


async def count(generation: str) -> Route:
    """One plain call, by a caller and to a server of this generation."""
    notes = Upstream(generation)

    @notes.tool("echo")
    async def echo(_call: Call) -> str:
        return "hi"

    async with Gateway({}, {"notes": notes}) as gate:
        caller = Caller(gate, generation)
        await caller.open()
        for _ in range(WARM_UP):
            answer = await caller.call()
            assert b'"text":"hi"' in answer.replace(b" ", b""), answer
        counter = Counter()
        sys.setprofile(counter)
        try:
            await caller.call()
        finally:
            sys.setprofile(None)
        await caller.close()
    return Route(dict(counter.calls))


def main() -> None:
    for generation in VERSIONS:
        path = run(lambda generation=generation: count(generation))
        print(f"{generation}: {len(path.files)} files, {path.functions} functions, {path.total} calls")
        if "-v" in sys.argv:
            for (file, function), times in sorted(path.calls.items()):
                print(f"    {times:3}  {file}  {function}")


if __name__ == "__main__":
    main()
