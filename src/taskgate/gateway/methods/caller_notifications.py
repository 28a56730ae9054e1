"""Notifications of stateful callers: a cancellation is carried out, everything else is passed on to the caller's servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.wire import Message
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.requests.session import Session
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.link import Link
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log


async def handle_notification(
    lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, message: Message
) -> None:
    """Handle a notification of a stateful caller."""
    if message.method == "notifications/cancelled":
        session.cancel(wire.encode((message.params or {}).get("requestId")), CancelNote.read(message.params))
    elif message.method != "notifications/initialized":
        links = _links_of(lookup, upstreams, session) or await _link_of_only_server(lookup, upstreams, session)
        await _notify_links(links, message)


async def _notify_links(links: list[Link], message: Message) -> None:
    """Forward the notification (changed roots, progress, vendor methods) over every open link of the session."""
    raw = bytes(message.raw_params) if message.raw_params is not None else None
    for link in links:
        try:
            await link.notify(message.method, raw)
        except TaskgateError as problem:
            log.info("notification not delivered", server=link.server, method=message.method, why=problem.message)


async def forward_log_level(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, level: str) -> None:
    """Set the log level at the session's servers. If that fails, the next call does it: every call carries the level."""
    for link in _links_of(lookup, upstreams, session):
        try:
            await link.set_log_level(level)
        except TaskgateError as problem:
            log.info("log level not delivered", server=link.server, level=level, why=problem.message)


def _servers_of(lookup: Lookup, session: Session) -> Sequence[str]:
    return tuple(lookup.views.subset(lookup.plan.value, session.caller.scope, session.narrowing).servers)


def _links_of(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """The session's open links to stateful servers of its scope; some may be shared with other sessions."""
    found = (upstreams[name].open_link(session.link_key) for name in _servers_of(lookup, session) if name in upstreams)
    return [link for link in found if link is not None and link.generation is Generation.STATEFUL]


async def _link_of_only_server(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """Open the link to the only server of a scope, so that it receives a notification before the first call, as over a direct
    connection. With several servers it is unknown which one the client means.
    """
    servers = _servers_of(lookup, session)
    if len(servers) != 1 or servers[0] not in upstreams:
        return []
    try:
        link = await upstreams[servers[0]].link(session.link_key, session.profile)
    except TaskgateError as problem:
        log.info("notification not delivered", server=servers[0], why=problem.message)
        return []
    return [link] if link.generation is Generation.STATEFUL else []
