"""Notifications of stateful callers: a cancellation is carried out, everything else is passed on to the caller's servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.wire import Message
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.requests.session import Session
from taskgate.ports.outlet import CancelNote
from taskgate.ports.upstream import Link, Upstream
from taskgate.telemetry.logs import log


async def notified(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, message: Message) -> None:
    if message.method == "notifications/cancelled":
        session.cancel(wire.encode((message.params or {}).get("requestId")), CancelNote.read(message.params))
    elif message.method != "notifications/initialized":
        links = _links_of(lookup, upstreams, session) or await _only_link(lookup, upstreams, session)
        await _tell_upstreams(links, message)


async def _tell_upstreams(links: list[Link], message: Message) -> None:
    """Roots that changed, progress on a question, vendor news: for every conversation this session has open."""
    raw = bytes(message.raw_params) if message.raw_params is not None else None
    for link in links:
        try:
            await link.notify(message.method, raw)
        except TaskgateError as problem:
            log.info("notification not delivered", server=link.server, method=message.method, why=problem.message)


async def pass_log_level_on(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, level: str) -> None:
    """A server that cannot be told hears of it with the session's next call: every call takes the level along."""
    for link in _links_of(lookup, upstreams, session):
        try:
            await link.set_log_level(level)
        except TaskgateError as problem:
            log.info("log level not delivered", server=link.server, level=level, why=problem.message)


def _servers_of(lookup: Lookup, session: Session) -> Sequence[str]:
    return tuple(lookup.views.subset(lookup.plan.value, session.caller.scope, session.narrowing).servers)


def _links_of(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """The open conversations that a session has with stateful upstreams of its scope; others may be shared with it, too."""
    found = (upstreams[name].open_link(session.link_key) for name in _servers_of(lookup, session) if name in upstreams)
    return [link for link in found if link is not None and link.generation is Generation.STATEFUL]


async def _only_link(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """Open the conversation with the only server of a scope, so that it receives a notification sent before the first call, as over
    a direct connection. With several servers it is not known which of them the client means.
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
