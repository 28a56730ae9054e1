"""A server with MCP Apps on FastMCP 4.1, on standard streams or a port: a tool with an interface, and one for the interface."""

from __future__ import annotations

import sys

from fastmcp import FastMCP
from fastmcp.apps import AppConfig

server = FastMCP("board")


@server.tool(app=AppConfig(resource_uri="ui://board/main.html"))
def show() -> str:
    return "board"


@server.tool(app=AppConfig(resource_uri="ui://board/main.html", visibility=["app"]))
def refresh() -> str:
    return "fresh"


@server.resource("ui://board/main.html")
def page() -> str:
    return "<!doctype html><title>Board</title><p>board of FastMCP</p>"


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
    else:
        server.run(show_banner=False)
