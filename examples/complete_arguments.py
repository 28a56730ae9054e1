# ruff: noqa: T201
"""Complete the arguments of a tool, as an editor or a shell would.

python examples/complete_arguments.py http://127.0.0.1:7467/mcp TOOL ARGUMENT TYPED
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any


def ask(url: str, method: str, params: dict[str, Any], name: str = "") -> dict[str, Any]:
    """One request of the stateless revision: no session, everything in the envelope."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "complete-arguments", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": envelope}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
    }
    if name:
        headers["Mcp-Name"] = name
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer: dict[str, Any] = json.load(reply)
    if "error" in answer:
        raise SystemExit(answer["error"]["message"])
    result: dict[str, Any] = answer["result"]
    return result


def main() -> None:
    url, tool, argument, typed = sys.argv[1:5]
    params = {"ref": {"type": "ref/tool", "name": tool}, "argument": {"name": argument, "value": typed}}
    completion = ask(url, "completion/complete", params)["completion"]
    for value in completion["values"]:
        print(value)
    if completion.get("hasMore"):
        print(f"... {completion['total']} in all", file=sys.stderr)


if __name__ == "__main__":
    main()
