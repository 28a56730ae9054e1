"""The request by which a script calls a tool: that of the script's caller, built from the record of the script.

It is the same before and after a restart, so a call is evaluated with the current rules, roles and scope of the caller, and not
with those at the start of the script.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.generations.generation import NEWEST_STATELESS, Generation
from taskgate.core.generations.stateless import Envelope
from taskgate.core.identity.caller import ANONYMOUS_LIMIT, Caller
from taskgate.core.scoping.session_request import NO_REQUEST
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Kind, Message, Raw
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.request import Request

_ENVELOPE: Final = Envelope(NEWEST_STATELESS, {}, None, None, accepts_tasks=False)


class ScriptOutlet:
    """A script has no connection: it gets the outcome of a call from the record of its task."""

    can_send = False
    still_there = False
    is_read = False

    def send(self, message: bytes) -> None:
        pass

    def hold_open(self) -> None:
        pass

    async def finish(self, status: int, body: bytes) -> None:
        pass


_OUTLET: Final = ScriptOutlet()


def caller_of(plan: Plan, script: Task) -> Caller:
    """The caller of a script, with its current roles."""
    limited_as = script.limited_as or script.caller
    return Caller(
        script.principal,
        plan.governing.roles.get(script.principal, frozenset()),
        script.scope,
        place=script.place,
        address=limited_as.removeprefix(ANONYMOUS_LIMIT) if limited_as.startswith(ANONYMOUS_LIMIT) else "",
        facts=script.facts,
    )


def call_request(plan: Plan, script: Task, digest: str, tool: str, arguments: dict[str, Any]) -> Request:
    """Return the `tools/call` request of a script. `digest` is that of its source."""
    params = {"name": tool, "arguments": arguments}
    message = Message(
        kind=Kind.REQUEST, id=b'"script"', method="tools/call", params=params, raw_params=Raw(wire.encode(params))
    )
    return Request(
        message=message,
        params=params,
        caller=caller_of(plan, script),
        session=None,
        envelope=_ENVELOPE,
        generation=Generation.STATELESS,
        narrowing=NO_REQUEST,
        headers={},
        progress_token=None,
        arrived=float("inf"),
        own_key=script.caller,
        delivery=ReplyDelivery(
            outlet=_OUTLET, message_id=message.id, session=None, envelope=_ENVELOPE, inbox=False, carrier=None
        ),
        inner=True,
        script=script.id,
        script_digest=digest,
    )
