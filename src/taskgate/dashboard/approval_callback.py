"""The address at which an external service decides an approval; the workflow's channel verifies its signature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.access.routes import RouteKind
from taskgate.core.identity.access import Access
from taskgate.dashboard.routes import Route, Visit
from taskgate.dashboard.web import Answer, problem
from taskgate.ports.approval_channel import CallbackChannel

TIMEOUT_S: Final = 30
_DIGITS: Final = frozenset("0123456789")


class ApprovalCallback(msgspec.Struct, eq=False):
    """`channels` returns the channels of each workflow, in the order of the configuration."""

    _channels: Callable[[], Mapping[str, Sequence[Any]]]

    def route(self) -> Route:
        return Route(
            method="POST",
            path="/api/approvals/callback/{workflow}/{number}",
            access=Access.PUBLIC,
            kind=RouteKind.WEBHOOK,
            handler=self._receive,
            summary="A decision from an external service; the workflow's channel verifies its signature.",
        )

    async def _receive(self, visit: Visit) -> Answer:
        request, number = visit.request, visit.values["number"]
        channels = self._channels().get(visit.values["workflow"], ())
        index = int(number) if number in _DIGITS else -1
        channel = channels[index] if 0 <= index < len(channels) else None
        if not isinstance(channel, CallbackChannel):
            return problem(404, "No channel accepts callbacks at this address.")
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        reply = await asyncio.wait_for(channel.receive(headers, request.body), TIMEOUT_S)
        return Answer(reply.status, reply.body, "application/json")
