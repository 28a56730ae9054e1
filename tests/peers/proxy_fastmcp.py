"""A proxy on FastMCP 4 whose own client supports no elicitation: makes calls through it and prints their outcomes.

It declares to the gateway that it can show links, and fails at showing one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient

warnings.filterwarnings("ignore")


async def main(url: str, token: str, tool: str, *calls: str) -> None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = StreamableHttpTransport(url, headers=headers)
    proxy = FastMCPProxy(client_factory=lambda: ProxyClient(transport, mode="2026-07-28"), name="proxy")
    async with Client(proxy) as client:
        for arguments in calls:
            try:
                result = await client.call_tool(tool, json.loads(arguments), raise_on_error=False)
                print(json.dumps({"text": result.content[0].text}), flush=True)
            except Exception as failure:
                print(json.dumps({"error": str(failure)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
