"""A server with MCP Apps on the Python SDK 2.3, on standard streams or a port: a tool with an interface, and one for apps only."""

from __future__ import annotations

import sys

from mcp.server.apps import Apps, ResourceCsp
from mcp.server.mcpserver import MCPServer

PAGE = "<!doctype html><title>Clock</title><p>clock of the Python SDK</p>"
apps = Apps()


@apps.tool(resource_uri="ui://clock/app.html", description="The time")
def get_time() -> str:
    return "noon"


@apps.tool(resource_uri="ui://clock/app.html", visibility=["app"])
def wind() -> str:
    return "wound"


apps.add_html_resource("ui://clock/app.html", PAGE, csp=ResourceCsp(connect_domains=["https://time.example"]))

if __name__ == "__main__":
    server = MCPServer("clock", extensions=[apps])
    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
