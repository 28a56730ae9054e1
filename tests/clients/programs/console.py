"""What the Python clients share: commands come as lines of JSON on standard input, replies go out as lines on standard output.

    {"op": "tools", "id": 1}                                         the names that the library shows
    {"op": "call", "id": 2, "tool": "report", "arguments": {...}}    call it the way the library calls tools
    {"op": "cancel", "id": 2}                                        cancel that call with the library's own method

A reply has what the library made of the answer, for a program (`value`) and as a model would read it (`text`). Calls run side by
side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

warnings.filterwarnings("ignore")
ANSWER = {"colour": "blue"}
_MAX_QUESTIONS = 100


class Library(Protocol):
    """One library's own way to list and call tools."""

    async def tools(self) -> list[str]: ...

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any: ...


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--command", type=json.loads, help="a JSON list: the server to start over stdio")
    parser.add_argument("--generation", choices=["2025", "2026"], default="2025")
    return parser.parse_args()


questions: list[str] = []


def asked(message: str) -> dict[str, str]:
    """The answer of the person at the client."""
    if len(questions) < _MAX_QUESTIONS:
        questions.append(message)
    return dict(ANSWER)


@dataclass(slots=True)
class Console:
    library: Library
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def attend(self) -> None:
        """Process commands until standard input ends."""
        write_line({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            if command["op"] == "cancel":
                self.running[command["id"]].cancel()
            else:
                self.running[command["id"]] = asyncio.create_task(self.obey(command))
        for task in self.running.values():
            task.cancel()

    async def obey(self, command: dict[str, Any]) -> None:
        try:
            if command["op"] == "tools":
                value: Any = await self.library.tools()
            else:
                value = await self.library.call(command["tool"], command["arguments"])
            reply = {"value": value, "text": value if isinstance(value, str) else json.dumps(value)}
        except asyncio.CancelledError:
            reply = {"cancelled": True}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        write_line({"id": command["id"], "questions": list(questions), **reply})


def write_line(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply, default=str) + "\n")
    sys.stdout.flush()


def run(main: Callable[[argparse.Namespace], Awaitable[None]]) -> None:
    asyncio.run(main(options()))  # type: ignore[arg-type]
