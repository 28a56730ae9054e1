# ruff: noqa: T201
"""A task by the vendor's methods, as clients of that family make them: `tasks/create` with an id of one's own.

python examples/vendor_methods.py http://127.0.0.1:7467/mcp

The gateway needs `compat: {vendor_methods: true}`. Plain HTTP and JSON, so that every byte can be seen.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any


class Caller:
    """A session of the 2025-11-25 revision."""

    def __init__(self, url: str) -> None:
        self.url, self.session, self.number = url, "", 0
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "vendor", "version": "1"},
        }
        self.ask("initialize", opening)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        body = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": "2025-11-25"}
        with urllib.request.urlopen(urllib.request.Request(self.url, json.dumps(body).encode(), headers)) as reply:
            self.session = reply.headers.get("Mcp-Session-Id") or self.session
            text = reply.read().decode()
        # A reply is JSON, or a stream whose last event is the answer.
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        answer: dict[str, Any] = json.loads(events[-1] if events else text)
        if "error" in answer:
            raise SystemExit(answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result


def main() -> None:
    caller = Caller(sys.argv[1])
    tools = [tool["name"] for tool in caller.ask("tools/list", {})["tools"]]
    action = next(name for name in tools if name.endswith("list_files"))
    made = caller.ask("tasks/create", {"id": f"report-{time.time_ns()}", "action": action, "arguments": {}})
    print(f"created: {made['taskId']} {made['status']}")
    ended = caller.ask("tasks/result", {"taskId": made["taskId"]})
    print(f"result: {ended['content'][0]['text']}")
    shown = caller.ask("tasks/get", {"taskId": made["taskId"]})
    print(f"shown: {shown['status']} {shown['action']} {type(shown['updatedAt']).__name__}")


if __name__ == "__main__":
    main()
