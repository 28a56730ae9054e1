"""A caller on FastMCP 4 that plays a script in either generation and prints what it saw, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import warnings
from typing import Any

import mcp_types as t
from fastmcp import Client
from script import ROOT, SUPPORTED_PROTOCOLS, Notebook, options, perform, report
from scripted import Operations, dump

warnings.filterwarnings("ignore")
MODES = {"2025": "legacy", "2026": "2026-07-28"}


class Actions(Operations):
    """What this client does in its own way."""

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name: str, arguments: dict[str, Any], progress: bool = False) -> Any:
        return dump(await self.client.call_tool_mcp(name, arguments))


class Person:
    """Answers the server's questions with the callbacks of this client."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    async def elicit(self, message: str, response_type: Any, params: Any, context: Any) -> Any:
        self.notebook.questions.append(["form", message])
        return {"name": self.notebook.next_name()}

    async def sample(self, messages: Any, params: Any, context: Any) -> str:
        self.notebook.questions.append(["sampling", messages[0].content.text])
        return SUPPORTED_PROTOCOLS


async def main(chosen: argparse.Namespace) -> None:
    notebook = Notebook()
    person = Person(notebook)
    client = Client(
        chosen.url,
        mode=MODES[chosen.generation],
        elicitation_handler=person.elicit,
        sampling_handler=person.sample,
        roots=[ROOT],
    )
    async with client:
        report(await perform(chosen.script, Actions(client, t, notebook), notebook))


if __name__ == "__main__":
    asyncio.run(main(options()))
