"""The Inspector's command line: a process for each call, which is interrupted to give the call up."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from console import Console, run

PEERS = Path(__file__).resolve().parent.parent.parent.parent / ".peers"
PROGRAM = (PEERS / "node", PEERS / "inspector/node_modules/.bin/mcp-inspector", "--cli")


class Library:
    def __init__(self, url: str) -> None:
        self.url = url

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.run("tools/list"))["tools"]]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        words = [part for name, value in arguments.items() for part in ("--tool-arg", f"{name}={as_word(value)}")]
        return await self.run("tools/call", "--tool-name", tool, *words)

    async def run(self, method: str, *more: str) -> Any:
        words = [*map(str, PROGRAM), self.url, "--transport", "http", "--method", method, *more]
        pipes = {
            "stdin": asyncio.subprocess.DEVNULL,
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.PIPE,
        }
        process = await asyncio.create_subprocess_exec(*words, **pipes)
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)
            await process.communicate()
            raise
        if process.returncode:
            raise RuntimeError(f"the Inspector ended with code {process.returncode}: {(err or out).decode()[-600:]}")
        return json.loads(out)


def as_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def main(chosen: argparse.Namespace) -> None:
    await Console(Library(chosen.url)).attend()


if __name__ == "__main__":
    run(main)
