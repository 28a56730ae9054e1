"""A session as it is stored for other gateways."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.identity.caller import CredentialFacts
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.session_request import NO_REQUEST, SessionRequest
from taskgate.gateway.requests.session import Session


class SessionBody(msgspec.Struct, frozen=True):
    """What is needed to open a session again. A field that is added later needs a default: older rows do not have it."""

    roles: list[str]
    place: str
    address: str
    version: str
    capabilities: dict[str, Any]
    client_info: dict[str, Any]
    server_lists: list[list[str]]
    tool_allowlists: list[list[str]]
    tool_denylist: list[str]
    subscriptions: dict[str, str]
    log_level: str | None
    used_tasks: bool
    facts: CredentialFacts | None = None


def session_body(session: Session) -> bytes:
    caller, narrowing = session.caller, session.narrowing
    body = SessionBody(
        roles=sorted(caller.roles),
        place=caller.place,
        address=caller.address,
        version=session.version,
        capabilities=dict(session.capabilities),
        client_info=dict(session.client_info),
        server_lists=[list(names) for names in narrowing.server_lists],
        tool_allowlists=[_texts(patterns) for patterns in narrowing.tool_allowlists],
        tool_denylist=_texts(narrowing.tool_denylist),
        subscriptions=dict(session.subscriptions),
        log_level=session.log_level,
        used_tasks=session.used_tasks,
        facts=caller.facts,
    )
    return msgspec.json.encode(body)


def _texts(patterns: PatternSet) -> list[str]:
    return [pattern.text for pattern in patterns.patterns]


def narrowing_in(body: SessionBody) -> SessionRequest:
    narrowing = SessionRequest(
        tuple(tuple(names) for names in body.server_lists),
        tuple(PatternSet.of(texts) for texts in body.tool_allowlists),
        PatternSet.of(body.tool_denylist),
    )
    return NO_REQUEST if narrowing == NO_REQUEST else narrowing
