"""A server with the HTTP+SSE transport of 2024-11-05, on the official SDK. Usage: old_sse_server_130.py PORT"""

from __future__ import annotations

import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("old-sse", host="127.0.0.1", port=int(sys.argv[1]), log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Return the text."""
    return text


server.run(transport="sse")
