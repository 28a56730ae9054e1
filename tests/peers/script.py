"""The script that every Python behaviour client plays, and the notebook in which it writes what it saw.

A script is a JSON list of steps such as `{"op": "call", "name": "echo", "arguments": {"text": "hi"}}`. Each step
yields one observation: its value or error, and what arrived while it ran. The result is printed as one JSON line. The
TypeScript clients play the same scripts with `script.mjs`. This module is independent of SDKs; a client passes it an object with
one async method per operation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

STEP_DEADLINE = 120.0
NOTICE_DEADLINE = 120.0
NAMES = ("Ann", "Bob", "Cleo", "Dora")
SUPPORTED_PROTOCOLS = "hello from the caller's model"
ROOT = "file:///tmp/project"


@dataclass(slots=True)
class Notebook:
    """What arrived from the server, apart from answers."""

    questions: list[Any] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    names_given: int = 0

    def next_name(self) -> str:
        name = NAMES[self.names_given % len(NAMES)]
        self.names_given += 1
        return name

    def notice(self, method: str) -> None:
        self.notices.append(method)
        self.arrived.set()

    async def wait_for(self, method: str) -> str:
        async with asyncio.timeout(NOTICE_DEADLINE):
            while method not in self.notices:
                self.arrived.clear()
                await self.arrived.wait()
        return method

    def start_step(self) -> None:
        self.names_given = 0
        for kept in (self.questions, self.logs, self.progress):
            kept.clear()

    def seen(self) -> dict[str, Any]:
        kept = {"questions": self.questions, "logs": self.logs, "progress": self.progress}
        return {name: list(items) for name, items in kept.items() if items}


async def perform(steps: list[dict[str, Any]], actions: Any, notebook: Notebook) -> list[dict[str, Any]]:
    """Play the steps one after the other; a failing step is an observation, not the end."""
    observations = []
    for step in steps:
        notebook.start_step()
        arguments = {name: value for name, value in step.items() if name != "op"}
        try:
            async with asyncio.timeout(STEP_DEADLINE):
                found: dict[str, Any] = {"value": await getattr(actions, step["op"])(**arguments)}
        except TimeoutError:
            found = {"error": {"message": f"no answer within {STEP_DEADLINE} s"}}
        except Exception as error:
            found = {"error": describe(error)}
        observations.append({"op": step["op"], **found, **notebook.seen()})
    return observations


def describe(error: Exception) -> dict[str, Any]:
    """The JSON-RPC error inside an SDK exception, or its message."""
    inner = getattr(error, "error", None)
    if inner is None or not hasattr(inner, "code"):
        return {"message": f"{type(error).__name__}: {error}"}
    return {"code": inner.code, "message": inner.message, "data": inner.data}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--command", type=json.loads, help="a JSON list: the server to start over stdio")
    parser.add_argument("--generation", choices=["2025", "2026"], default="2025")
    parser.add_argument(
        "--alone", action="store_true", help="no person is at the client: it has no callbacks for questions"
    )
    parser.add_argument("script", type=json.loads)
    return parser.parse_args()


def report(observations: list[dict[str, Any]]) -> None:
    print(json.dumps(observations))
