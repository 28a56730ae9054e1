"""A caller asks what there is: tools, prompts, resources, resource templates. One list out of many servers, in pages."""

from __future__ import annotations

from typing import Final

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind, page
from taskgate.core.generations import SERVER_INFO, Generation
from taskgate.gateway.calls.context import Context
from taskgate.gateway.methods.handshake import SERVER
from taskgate.gateway.own_tools import own_resources, table
from taskgate.gateway.own_tools.manage_servers import NEEDS_PERMISSION
from taskgate.gateway.requests.replies import audience_of
from taskgate.gateway.requests.request import Request

PAGE: Final = 1000
_STATELESS_TAIL: Final = (
    b',"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":' + wire.encode({SERVER_INFO: SERVER}) + b"}"
)
_KEYS: Final = {
    "tools/list": (EntryKind.TOOL, b"tools"),
    "prompts/list": (EntryKind.PROMPT, b"prompts"),
    "resources/list": (EntryKind.RESOURCE, b"resources"),
    "resources/templates/list": (EntryKind.TEMPLATE, b"resourceTemplates"),
}


async def list_catalog(context: Context, request: Request) -> bytes:
    kind, key = _KEYS[request.message.method]
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    audience = audience_of(request)
    entries = view.listing(kind, audience)
    if kind is EntryKind.TOOL:
        hidden = frozenset() if context.dynamic_servers.allowed(context.plan) else NEEDS_PERMISSION
        entries = table.listing(view, entries, audience, hidden)
    elif kind is EntryKind.RESOURCE:
        entries = own_resources.listing(view.scope, entries)
    found = page(entries, request.params.get("cursor"), PAGE)
    body = b'{"' + key + b'":[' + b",".join(found.items) + b"]"
    if found.next_cursor is not None:
        body += b',"nextCursor":' + wire.encode(found.next_cursor)
    # Written here and not by taking the whole list apart again: a list may be long.
    return body + (_STATELESS_TAIL if request.generation is Generation.STATELESS else b"}")
