"""FastMCP's proxy at its best: one connected client shared by all callers. Runs in the environment of that peer.

python fastmcp_proxy.py UPSTREAM_URL PORT GENERATION
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.server import create_proxy


async def main(upstream: str, port: int, generation: str) -> None:
    async with Client(upstream, mode="legacy" if generation == "2025" else "2026-07-28") as client:
        proxy = create_proxy(client, name="proxy")
        await proxy.run_http_async(host="127.0.0.1", port=port, path="/mcp", log_level="error", show_banner=False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
