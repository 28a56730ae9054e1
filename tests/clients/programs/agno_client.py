"""agno: the functions of `MCPTools`, executed as an agent executes them."""

from __future__ import annotations

import argparse
from typing import Any

from agno.tools.function import FunctionCall
from agno.tools.mcp import MCPTools

from console import Console, run


class Library:
    def __init__(self, toolkit: MCPTools) -> None:
        self.toolkit = toolkit

    async def tools(self) -> list[str]:
        return [function.to_dict()["name"] for function in self.toolkit.functions.values()]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        done = await FunctionCall(function=self.toolkit.functions[tool], arguments=arguments).aexecute()
        if done.status != "success":
            raise RuntimeError(done.error)
        return str(getattr(done.result, "content", done.result))


async def main(chosen: argparse.Namespace) -> None:
    async with MCPTools(url=chosen.url, transport="streamable-http", timeout_seconds=60) as toolkit:
        await Console(Library(toolkit)).attend()


if __name__ == "__main__":
    run(main)
