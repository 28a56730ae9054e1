"""A scripted server with MCP Apps: tools that declare interfaces, and the interfaces."""

from __future__ import annotations

from typing import Any

from tests.virtual_time import Call, Failure, Upstream

APP_MIME = "text/html;profile=mcp-app"
UI = "io.modelcontextprotocol/ui"
RENDERS_APPS = {"extensions": {UI: {"mimeTypes": [APP_MIME]}}}
"""What a host declares that renders apps."""


class AppServer(Upstream):
    def __init__(self, generation: str = "both", *, listed: bool = False) -> None:
        super().__init__(generation, capabilities={"resources": {"subscribe": True, "listChanged": True}})
        self.pages: dict[str, dict[str, Any]] = {}
        """The content of each interface by its address."""
        self.listed = listed
        """Whether interfaces are in `resources/list`; servers may leave them out."""
        self.settings: dict[str, Any] = {}
        """The entry of every interface in `resources/list`."""
        self.on("resources/list", self._list)
        self.on("resources/templates/list", self._templates)
        self.on("resources/read", self._read)
        self.on("resources/subscribe", self._subscribed)
        self.on("resources/unsubscribe", self._subscribed)

    def app(
        self, tool: str, uri: str, html: str = "<p>app</p>", *, meta: dict[str, Any] | None = None, **ui: Any
    ) -> None:
        """Offer a tool with an interface. `meta` replaces the usual way of declaring it."""

        async def run(call: Call) -> str:
            return f"{self.name} ran {tool}"

        self.page(uri, html)
        self.tool(tool, run, _meta=meta if meta is not None else {"ui": {"resourceUri": uri, **ui}})

    def page(self, uri: str, html: str, **ui: Any) -> None:
        self.pages[uri] = {"uri": uri, "mimeType": APP_MIME, "text": html, **({"_meta": {"ui": ui}} if ui else {})}

    async def _list(self, _call: Call) -> dict[str, Any]:
        more = {"_meta": {"ui": self.settings}} if self.settings else {}
        pages = [{"uri": uri, "name": uri, "mimeType": APP_MIME, **more} for uri in self.pages if self.listed]
        return {"resources": pages}

    async def _templates(self, _call: Call) -> dict[str, Any]:
        return {"resourceTemplates": []}

    async def _read(self, call: Call) -> dict[str, Any]:
        page = self.pages.get(call.params["uri"])
        if page is None:
            raise Failure(-32602, "no such page")
        return {"contents": [page]}

    async def _subscribed(self, _call: Call) -> dict[str, Any]:
        return {}

    def reads(self, uri: str) -> int:
        """How often this address was read here."""
        return sum(m.get("method") == "resources/read" and m["params"]["uri"] == uri for m in self.received)
