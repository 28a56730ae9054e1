"""A stdio MCP server that writes down every call it gets, and describes its tools as a file says at that moment.

Run as a program: `noting_server.py NOTES TOOLS`. The test reads NOTES to prove what went upstream, and rewrites TOOLS to
change a definition behind the gateway's back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NOTES, TOOLS = Path(sys.argv[1]), Path(sys.argv[2])


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": "noting", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": json.loads(TOOLS.read_text())}
    if method == "resources/list":
        return {"resources": [{"uri": "note://secret", "name": "secret"}, {"uri": "note://open", "name": "open"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "prompts/list":
        return {"prompts": [{"name": "draft_mail"}]}
    if method in ("tools/call", "resources/read", "prompts/get"):
        with NOTES.open("a") as notes:
            notes.write(json.dumps({"method": method, "params": params}) + "\n")
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"did {params['name']} {json.dumps(params.get('arguments'))}"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "the text"}]}
    if method == "prompts/get":
        return {"messages": []}
    return {}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
