"""How the gateway introduces itself: the reply to `initialize`, and to `server/discover`.

Capabilities are the union of what the servers in scope can do, plus what we do ourselves, plus every list: a caller hears them
once, and a server that is only just starting may bring prompts and resources later. A caller is not kept waiting for a server:
what is known of it, from now or from the last run, is told. See docs/decisions/every-list-is-announced.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.catalog.tool_listing import sends_task_status
from taskgate.core.generations import SERVER_INFO, STATELESS_REVISIONS, TASKS_EXTENSION, speaks_tasks
from taskgate.gateway.calls.context import Context
from taskgate.gateway.own_tools import own_resources

SERVER: Final = {"name": "taskgate", "title": "Taskgate", "version": __version__}
_NOT_KNOWN_YET: Final = {"resources": {"subscribe": True}}
"""Of a server that has not answered: a caller that may not subscribe now would never try."""
_KEPT_BACK: Final = frozenset({"tasks", "notifications", "extensions"})


def merged(all_capabilities: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of capability objects; of a flag set by one and not by another, set wins."""
    union: dict[str, Any] = {}
    for capabilities in all_capabilities:
        for key, value in capabilities.items():
            if key in _KEPT_BACK:
                continue
            before = union.get(key)
            if isinstance(before, dict) and isinstance(value, Mapping):
                union[key] = {**before, **{k: v for k, v in value.items() if v or k not in before}}
            elif key not in union:
                union[key] = dict(value) if isinstance(value, Mapping) else value
    return union


def stateful_capabilities(upstreams: list[Mapping[str, Any]], version: str) -> dict[str, Any]:
    capabilities = merged(upstreams)
    _announce_lists(capabilities)
    if speaks_tasks(version):
        capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}, "tools/call": True}}
        if any(sends_task_status(upstream) for upstream in upstreams):
            capabilities["notifications"] = {"tasks": {"status": True}}
    return capabilities


def stateless_capabilities(upstreams: list[Mapping[str, Any]]) -> dict[str, Any]:
    capabilities = merged(upstreams)
    _announce_lists(capabilities)
    vendor = (upstream.get("extensions") for upstream in upstreams)
    capabilities["extensions"] = {
        **merged(extensions for extensions in vendor if isinstance(extensions, Mapping)),
        TASKS_EXTENSION: {},
    }
    return capabilities


def _announce_lists(capabilities: dict[str, Any]) -> None:
    """Lists may grow under us (a late start, a reload, a reconnect), also where no upstream announces it, so we always do."""
    for key in ("tools", "prompts", "resources"):
        capabilities[key] = {**capabilities.get(key, {}), "listChanged": True}
    # Names, URIs and the arguments of tools are completed by ourselves where no server does it; levels are kept by ourselves.
    capabilities.setdefault("completions", {})
    capabilities.setdefault("logging", {})


async def initialize_result(context: Context, scope: str, servers: tuple[str, ...], version: str) -> bytes:
    capabilities, instructions = await _known(context, scope, servers)
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": stateful_capabilities(capabilities, version),
        "serverInfo": SERVER,
    }
    if instructions:
        result["instructions"] = instructions
    return wire.encode(result)


async def discover_result(context: Context, scope: str, servers: tuple[str, ...]) -> bytes:
    capabilities, instructions = await _known(context, scope, servers)
    result: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list(STATELESS_REVISIONS),
        "capabilities": stateless_capabilities(capabilities),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: SERVER},
    }
    if instructions:
        result["instructions"] = instructions
    return wire.encode(result)


async def _known(context: Context, scope: str, servers: tuple[str, ...]) -> tuple[list[Mapping[str, Any]], str]:
    await context.catalogs.settled(servers)
    offers = {server: offer for server in servers if (offer := context.catalogs.offer(server)) is not None}
    texts = {server: offer.instructions for server, offer in offers.items() if offer.instructions}
    if len(texts) == 1 and len(servers) == 1:
        instructions = next(iter(texts.values())) or ""
    else:
        instructions = "\n\n".join(f"[{server}]\n{text}" for server, text in texts.items())
    policy = context.plan.scopes.get(scope)
    texts_in_order = [text for text in (own_resources.instructions(policy), instructions) if text]
    capabilities = [offer.capabilities for offer in offers.values()]
    if len(offers) < len(servers):
        capabilities.append(_NOT_KNOWN_YET)
    return capabilities, "\n\n".join(texts_in_order)
