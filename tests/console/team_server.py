"""A server of a team for pictures of the console: `python -m tests.console.team_server NAME`. Its tools have the names, schemas and
results of such a server; their work is only time that passes."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from taskgate.demo.files import DemoServer

TEXT: Final = {"type": "string"}
STEPS: Final = 6


def _tool(name: str, description: str, properties: dict[str, Any], *required: str, **hints: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


_SERVICE: Final = {"type": "string", "description": "Name of the service, as in the service catalog."}
_DEPLOY: Final = {
    "service": _SERVICE,
    "version": {"type": "string", "description": "Tag of the image."},
    "environment": {"type": "string", "enum": ["staging", "production"], "description": "Where it is deployed."},
    "canary_percent": {
        "type": "integer",
        "minimum": 0,
        "maximum": 100,
        "default": 10,
        "description": "Traffic of the first step.",
    },
    "run_migrations": {"type": "boolean", "default": False, "description": "Run the migrations of the database first."},
}
_ITEM: Final = {"id": {"type": "string", "description": "Id of the item."}}
USUAL: Final = (
    _tool("list_items", "List items, newest first.", {"limit": {"type": "integer", "default": 20}}, readOnlyHint=True),
    _tool("get_item", "Read one item.", _ITEM, "id", readOnlyHint=True),
    _tool("update_item", "Change fields of one item.", {**_ITEM, "fields": {"type": "object"}}, "id", "fields"),
)
TOOLS: Final = {
    "deploy": (
        _tool(
            "deploy_service",
            "Deploy a version of a service, step by step.",
            _DEPLOY,
            "service",
            "version",
            "environment",
            destructiveHint=True,
            openWorldHint=True,
        ),
        _tool(
            "roll_back",
            "Return a service to its previous version.",
            {"service": _SERVICE},
            "service",
            destructiveHint=True,
        ),
    ),
    "github": (
        _tool("list_pull_requests", "List open pull requests.", {"repository": TEXT}, "repository", readOnlyHint=True),
        _tool(
            "merge_pull_request",
            "Merge a pull request.",
            {
                "repository": TEXT,
                "number": {"type": "integer"},
                "method": {"type": "string", "enum": ["squash", "rebase", "merge"]},
            },
            "repository",
            "number",
            destructiveHint=True,
        ),
        _tool(
            "read_file",
            "Read a file of a repository.",
            {"repository": TEXT, "path": TEXT},
            "repository",
            "path",
            readOnlyHint=True,
        ),
    ),
    "billing": (
        _tool(
            "create_invoice",
            "Create and send an invoice.",
            {
                "customer": TEXT,
                "amount": {"type": "number"},
                "currency": TEXT,
                "due": {"type": "string", "format": "date"},
            },
            "customer",
            "amount",
            destructiveHint=False,
            openWorldHint=True,
        ),
        _tool("list_invoices", "List invoices.", {"customer": TEXT}, readOnlyHint=True),
    ),
    "crm": (
        _tool("find_customer", "Find customers by name.", {"name": TEXT}, "name", readOnlyHint=True),
        _tool(
            "update_customer",
            "Change fields of a customer.",
            {"id": TEXT, "fields": {"type": "object"}},
            "id",
            "fields",
            idempotentHint=True,
        ),
    ),
    "warehouse": (
        _tool(
            "run_query",
            "Run a query on the data warehouse.",
            {"sql": TEXT, "timeout_s": {"type": "integer", "default": 900}},
            "sql",
            readOnlyHint=True,
        ),
        _tool("explain_query", "Explain a query without running it.", {"sql": TEXT}, "sql", readOnlyHint=True),
    ),
    "search": (_tool("search_documents", "Search all documents.", {"text": TEXT}, "text", readOnlyHint=True),),
}


class TeamServer(DemoServer):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.tools = TOOLS.get(name, USUAL)

    async def _answer(self, message: dict[str, Any]) -> None:
        if message["method"] == "tools/list":
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": self.tools}})
        else:
            await super()._answer(message)

    async def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params["name"], params.get("arguments") or {}
        if name == "run_query":
            await asyncio.sleep(float(arguments.get("timeout_s", 900)))
        if name != "deploy_service":
            return {"content": [{"type": "text", "text": "[]"}]}
        return await self._deploy(arguments, (params.get("_meta") or {}).get("progressToken"))

    async def _deploy(self, arguments: dict[str, Any], token: Any) -> dict[str, Any]:
        service, version = arguments["service"], arguments["version"]
        steps = []
        for number in range(1, STEPS + 1):
            await asyncio.sleep(1)
            share = min(100, arguments.get("canary_percent", 10) * number)
            healthy = number != 3
            steps.append(
                {
                    "step": number,
                    "traffic_percent": share,
                    "healthy": healthy,
                    "error_rate": 0.0004 if healthy else 0.011,
                }
            )
            if token is not None:
                progress = {
                    "progressToken": token,
                    "progress": number,
                    "total": STEPS,
                    "message": f"{service}: {share}% of the traffic",
                }
                self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        result = {
            "service": service,
            "version": version,
            "previous": "2.13.4",
            "warnings": ["step 3: error rate above 1% for 20 s"],
            "steps": steps,
        }
        return {"content": [{"type": "text", "text": f"Deployed {service} {version}."}], "structuredContent": result}


if __name__ == "__main__":
    asyncio.run(TeamServer(sys.argv[1]).run())
