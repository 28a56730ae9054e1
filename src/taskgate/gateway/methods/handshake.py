"""The results of `initialize` and `server/discover`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core import wire
from taskgate.core.generations.generation import STATELESS_REVISIONS
from taskgate.core.generations.stateless import SERVER_INFO
from taskgate.core.scoping.scope import ScopeMode
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.methods.capabilities import (
    SERVER,
    UNLISTED_SERVER,
    stateful_capabilities,
    stateless_capabilities,
)
from taskgate.gateway.own_tools import shown_tools


async def initialize_result(lookup: Lookup, scope: str, servers: tuple[str, ...], version: str) -> bytes:
    capabilities, instructions = await _offers_of(lookup, scope, servers)
    alone = _is_alone(lookup, scope, servers)
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": stateful_capabilities(capabilities, version, alone=alone),
        "serverInfo": SERVER,
    }
    if instructions:
        result["instructions"] = instructions
    return wire.encode(result)


async def discover_result(lookup: Lookup, scope: str, servers: tuple[str, ...], *, more_skills: bool) -> bytes:
    capabilities, instructions = await _offers_of(lookup, scope, servers)
    alone = _is_alone(lookup, scope, servers)
    result: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list(STATELESS_REVISIONS),
        "capabilities": stateless_capabilities(capabilities, more_skills=more_skills, alone=alone),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: SERVER},
    }
    if instructions:
        result["instructions"] = instructions
    return wire.encode(result)


def _is_alone(lookup: Lookup, scope: str, servers: tuple[str, ...]) -> bool:
    """Whether a caller sees one server, which was listed, and nothing of the gateway's own."""
    policy = lookup.plan.value.scopes.get(scope)
    if policy is None or policy.has_helpers or policy.mode is not ScopeMode.DIRECT or policy.scripts:
        return False
    return len(servers) == 1 and lookup.catalogs.offer(servers[0]) is not None


async def _offers_of(lookup: Lookup, scope: str, servers: tuple[str, ...]) -> tuple[list[Mapping[str, Any]], str]:
    await lookup.catalogs.settled(servers)
    offers = {server: offer for server in servers if (offer := lookup.catalogs.offer(server)) is not None}
    texts = {server: offer.instructions for server, offer in offers.items() if offer.instructions}
    if len(texts) == 1 and len(servers) == 1:
        instructions = next(iter(texts.values())) or ""
    else:
        instructions = "\n\n".join(f"[{server}]\n{text}" for server, text in texts.items())
    policy = lookup.plan.value.scopes.get(scope)
    texts_in_order = [text for text in (shown_tools.instructions(policy), instructions) if text]
    capabilities = [offer.capabilities for offer in offers.values()]
    if len(offers) < len(servers):
        capabilities.append(UNLISTED_SERVER)
    return capabilities, "\n\n".join(texts_in_order)
