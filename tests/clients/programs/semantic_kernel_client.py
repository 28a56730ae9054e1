"""semantic-kernel: the functions of an `MCPStreamableHttpPlugin`, invoked by a kernel."""

from __future__ import annotations

import argparse
from typing import Any

from semantic_kernel import Kernel
from semantic_kernel.connectors.mcp import MCPStreamableHttpPlugin

from console import Console, run


class Library:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    async def tools(self) -> list[str]:
        return [found.name for found in self.kernel.get_plugin("gateway").functions.values()]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self.kernel.invoke(plugin_name="gateway", function_name=tool, **arguments)
        return str(result)


async def main(chosen: argparse.Namespace) -> None:
    async with MCPStreamableHttpPlugin(name="gateway", url=chosen.url, load_prompts=False) as plugin:
        kernel = Kernel()
        kernel.add_plugin(plugin)
        await Console(Library(kernel)).attend()


if __name__ == "__main__":
    run(main)
