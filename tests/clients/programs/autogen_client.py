"""AutoGen: the tools that `mcp_server_tools` makes, with an argument model for each; it opens a session for each call."""

from __future__ import annotations

import argparse
from typing import Any

from autogen_core import CancellationToken
from autogen_ext.tools.mcp import StreamableHttpServerParams, mcp_server_tools

from console import Console, run


class Library:
    def __init__(self, url: str) -> None:
        self.server = StreamableHttpServerParams(url=url)
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        self.known = {tool.name: tool for tool in await mcp_server_tools(self.server)}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        chosen = self.known[tool]
        return chosen.return_value_as_string(await chosen.run_json(arguments, CancellationToken()))


async def main(chosen: argparse.Namespace) -> None:
    await Console(Library(chosen.url)).attend()


if __name__ == "__main__":
    run(main)
