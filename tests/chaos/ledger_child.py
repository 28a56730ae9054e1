"""The same ledger over stdio: a child that writes every execution to the ledger before anything else happens.

ledger_child.py LEDGER
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.chaos.ledger_server import TOOLS, Ledger

INFO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "books", "version": "1"},
}
LISTED = {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in TOOLS]}


def write_line(message_id: Any, result: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": message_id, "result": result}), flush=True)


async def call(ledger: Ledger, message: dict[str, Any]) -> None:
    tool, arguments = message["params"]["name"], message["params"]["arguments"]
    number = ledger.begin(tool, arguments["call"])
    await asyncio.sleep(arguments["seconds"])
    ledger.end(number)
    write_line(message["id"], {"content": [{"type": "text", "text": f"{tool} {arguments['call']}"}]})


async def main(ledger: Ledger) -> None:
    reader, calls = asyncio.StreamReader(), set[asyncio.Task[None]]()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        match message.get("method"):
            case "tools/call":
                calls.add(asyncio.create_task(call(ledger, message)))
            case "initialize":
                write_line(message["id"], INFO)
            case "tools/list":
                write_line(message["id"], LISTED)
            case _ if "id" in message:
                write_line(message["id"], {})


if __name__ == "__main__":
    asyncio.run(main(Ledger(Path(sys.argv[1]))))
