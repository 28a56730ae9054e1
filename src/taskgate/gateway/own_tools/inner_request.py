"""A request that an own tool makes on behalf of its caller. It passes the same scope and gates as any other.

Logs and notifications that the server sends meanwhile are added to the caller's feed, and sent to the caller natively as well.
The reply of the inner call becomes part of the tool's reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.meta import META
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.gateway.own_tools.reply_events import with_events
from taskgate.gateway.own_tools.tool import failed, relayed
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.replies import executed_stated
from taskgate.gateway.requests.request import Request

_FORWARDED_MEMBERS = ("requestState", "inputResponses", META)


class InnerDelivery(ReplyDelivery, eq=False, kw_only=True):
    activity: Activity
    outer: Request
    feed: Feed
    server: str

    async def answer_early(self, result: bytes) -> None:
        """The call continues as a task: send the tool's reply, with its events, now."""
        self.answered = True
        reply = await with_events(self.activity.inbox, self.outer, self.feed, relayed(result))
        await self.outer.delivery.answer_early(reply.encoded(self.outer.generation))

    async def fail_early(self, problem: TaskgateError, status: int, body: bytes) -> None:
        """Own tools return errors as tool results."""
        self.answered = True
        reply = failed(problem, executed_stated(problem, self.outer.message))
        reply = await with_events(self.activity.inbox, self.outer, self.feed, reply)
        await self.outer.delivery.answer_early(reply.encoded(self.outer.generation))

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        raw = bytes(params) if params is not None else None
        caller = self.outer.delivery
        if method == "notifications/progress":
            caller.notify(method, raw)
            return
        self.activity.add_server_message(self.feed, self.server, method, raw)
        if method != "notifications/message" or caller.accepts_log(log_level(raw)):
            caller.notify(method, raw)

    def when_delivered(self, hook: Callable[[bool], None]) -> None:
        """The result of the call is delivered with the reply of the tool."""
        self.outer.delivery.when_delivered(hook)

    def accepts_log(self, level: str) -> bool:
        return True


def inner_request(
    activity: Activity, outer: Request, feed: Feed, server: str, method: str, *, params: Members
) -> Request:
    """Return the request that an own tool makes for `outer`."""
    carried = outer.members()
    members = {**params, **{key: carried[key] for key in _FORWARDED_MEMBERS if key in carried}}
    decoded: dict[str, Any] = {key: wire.parse_strictly(bytes(value)) for key, value in members.items()}
    message = Message(Kind.REQUEST, outer.message.id, method, decoded, raw_params=Raw(wire.join(members)))
    way = outer.delivery
    delivery = InnerDelivery(
        activity=activity,
        outer=outer,
        feed=feed,
        server=server,
        outlet=way.outlet,
        message_id=outer.message.id,
        session=outer.session,
        envelope=outer.envelope,
        inbox=way.inbox,
        carrier=way.carrier,
        span=way.span,
    )
    return replace(outer, message=message, params=decoded, delivery=delivery, inner=True, headers={})


def log_level(params: bytes | None) -> str:
    value = wire.parse_strictly(params) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
