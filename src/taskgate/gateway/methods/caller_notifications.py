"""Notifications from stateful callers: a cancel is ours to act on, everything else is for the servers it talks to."""

from __future__ import annotations

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.wire import Message
from taskgate.gateway.calls.context import Context
from taskgate.gateway.requests.sessions import Session
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.upstream import Link
from taskgate.telemetry.logs import log


async def notified(context: Context, session: Session, message: Message) -> None:
    if message.method == "notifications/cancelled":
        session.cancel(wire.encode((message.params or {}).get("requestId")), CancelNote.read(message.params))
    elif message.method != "notifications/initialized":
        await _tell_upstreams(context, session, message)


async def _tell_upstreams(context: Context, session: Session, message: Message) -> None:
    """Roots that changed, progress on a question, vendor news: for every conversation this session has open."""
    raw = bytes(message.raw_params) if message.raw_params is not None else None
    for link in links_of(context, session):
        try:
            await link.notify(message.method, raw)
        except TaskgateError as problem:
            log.info("notification not delivered", server=link.server, method=message.method, why=problem.message)


def links_of(context: Context, session: Session) -> list[Link]:
    """The open conversations that a session has with stateful upstreams."""
    found = (upstream.open_link(session.link_key) for upstream in context.upstreams.values())
    return [link for link in found if link is not None and link.generation is Generation.STATEFUL]
