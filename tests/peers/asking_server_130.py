"""A server on `mcp` 1.30 that asks for a name, at once or when a file exists: HTTP or stdio."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel


class Name(BaseModel):
    name: str


async def greet(context: Context[Any, Any, Any], after: str = "") -> str:
    """Ask for a name, once the file `after` exists."""
    while after and not Path(after).exists():
        await asyncio.sleep(0.02)
    answer = await context.elicit("What is your name?", Name)
    return f"accept:{answer.data.name}" if answer.action == "accept" else answer.action


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--http", type=int)
    chosen = parser.parse_args()
    server = FastMCP("asking", log_level="ERROR", port=chosen.http or 0)
    server.tool()(greet)
    server.run("stdio" if chosen.stdio else "streamable-http")


if __name__ == "__main__":
    main()
