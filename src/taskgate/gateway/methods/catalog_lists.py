"""`tools/list`, `prompts/list`, `resources/list`, `resources/templates/list` and `skills/list`: one list of many servers, in
pages.
"""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.pages import EntryList, Page, page_from, start_of
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import SERVER_INFO
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.view import RENDERED_AT_ONCE
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.methods.capabilities import SERVER
from taskgate.gateway.own_tools.manage_servers import NEEDS_PERMISSION
from taskgate.gateway.own_tools.own_resources import resource_listing
from taskgate.gateway.own_tools.shown_tools import listing
from taskgate.gateway.requests.audience import audience_of
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
    "skills/list": (EntryKind.SKILL, b"skills"),
}


async def list_catalog(lookup: Lookup, dynamic_servers: DynamicServers, request: Request) -> bytes:
    kind, key = _KEYS[request.message.method]
    view = await lookup.view(request, listing=True)
    audience = audience_of(request)
    entries = await view.listed(kind, audience)
    if kind is EntryKind.TOOL:
        hidden = frozenset() if dynamic_servers.allowed(lookup.plan.value) else NEEDS_PERMISSION
        entries = listing(view, entries, audience, hidden)
    elif kind is EntryKind.RESOURCE:
        entries = resource_listing(view.scope, entries)
    found = await _page(entries, start_of(entries, request.params.get("cursor")))
    body = b'{"' + key + b'":[' + b",".join(found.items) + b"]"
    if found.next_cursor is not None:
        body += b',"nextCursor":' + wire.encode(found.next_cursor)
    # Appended as bytes: parsing the list again would be slow for a long one.
    return body + (_STATELESS_TAIL if request.generation is Generation.STATELESS else b"}")


async def _page(entries: EntryList, start: int) -> Page:
    """Return a page. One of a long list that is not encoded yet is encoded in a thread."""
    if len(entries) <= RENDERED_AT_ONCE or entries.are_encoded(start, start + PAGE):
        return page_from(entries, start, PAGE)
    return await asyncio.to_thread(page_from, entries, start, PAGE)
