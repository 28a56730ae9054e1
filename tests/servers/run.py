"""`make servers`: every server of the catalog, directly and through Taskgate, as a table.

python -m tests.servers.run [NAME ...]
"""

from __future__ import annotations

import asyncio
import sys

from tests.harness.absent import find_browser, reason_for
from tests.servers.catalog import SERVERS, Server
from tests.servers.compare import differences


def absent(server: Server) -> str | None:
    if server.name == "playwright" and find_browser() is None:
        return "no Chromium on this machine"
    return reason_for(server.peer)


async def main(names: list[str]) -> int:
    wrong = 0
    for server in SERVERS:
        if names and server.name not in names:
            continue
        if reason := absent(server):
            print(f"{server.name:20} ABSENT: {reason}", flush=True)
            continue
        asked, different = await differences(server)
        wrong += len(different)
        print(f"{server.name:20} {asked} asked, {asked - len(different)} equal", flush=True)
        for name, how in different.items():
            print(f"    {name}: {how}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1:])))
