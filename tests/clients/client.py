"""A client program while it runs: commands go to it as lines, and each of its replies is found by its number."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.programs import die_with_parent

TIMEOUT = 60.0
"""What any one reply may take; it only ends a hang."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the library returned for a reply."""

    value: Any = None
    text: str = ""
    error: str | None = None
    cancelled: bool = False
    questions: tuple[str, ...] = ()

    @classmethod
    def read(cls, received: dict[str, Any]) -> Reply:
        return cls(
            received.get("value"),
            received.get("text", ""),
            received.get("error"),
            received.get("cancelled", False),
            tuple(received.get("questions", ())),
        )


@dataclass(slots=True)
class RunningClient:
    """A program of `programs/`, listening."""

    process: asyncio.subprocess.Process
    log: Path
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    awaited: dict[int, asyncio.Future[Reply]] = field(default_factory=dict)

    async def tools(self) -> Reply:
        return await self.reply_to(self.begin(op="tools"))

    async def call(self, tool: str, **arguments: Any) -> Reply:
        return await self.reply_to(self.start(tool, **arguments))

    def start(self, tool: str, **arguments: Any) -> int:
        """Begin a call; the number is for `reply_to` and `cancel`."""
        return self.begin(op="call", tool=tool, arguments=arguments)

    def begin(self, **command: Any) -> int:
        number = next(self.ids)
        self.awaited[number] = asyncio.get_running_loop().create_future()
        self.send({"id": number, **command})
        return number

    def cancel(self, number: int) -> None:
        self.send({"op": "cancel", "id": number})

    def send(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    async def reply_to(self, number: int) -> Reply:
        try:
            return await asyncio.wait_for(self.awaited[number], TIMEOUT)
        except TimeoutError:
            return Reply(error=f"no reply within {TIMEOUT:g} s")

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            data = json.loads(line) if line.startswith(b"{") else {}
            waiting = self.awaited.get(data.get("id", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result(Reply.read(data))
        for waiting in self.awaited.values():
            if not waiting.done():
                waiting.set_result(Reply(error=f"the client ended: {self.log.read_text()[-600:]}"))


@asynccontextmanager
async def running_client(command: Sequence[str | Path]) -> AsyncIterator[RunningClient]:
    """The connected client, until the block ends."""
    log = Path(tempfile.mkstemp(prefix="client-", suffix=".log")[1])
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
            preexec_fn=die_with_parent,
            limit=1 << 24,
        )
    client = RunningClient(process, log)
    try:
        await wait_until_connected(client)
        listener = asyncio.create_task(client.listen())
        try:
            yield client
        finally:
            await end(process)
            await listener
    finally:
        if process.returncode is None:
            await end(process)


async def wait_until_connected(client: RunningClient) -> None:
    assert client.process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        while line := await client.process.stdout.readline():
            if line.startswith(b'{"ready"'):
                return
    raise AssertionError(f"the client did not connect:\n{client.log.read_text()[-3000:]}")


async def end(process: asyncio.subprocess.Process) -> None:
    """Close its standard input, which ends it; the rest of its process group is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 10)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
