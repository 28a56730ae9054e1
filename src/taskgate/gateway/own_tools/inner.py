"""A request that one of our own tools makes on behalf of its caller. It passes the same scope and gates as any other.

What the server says meanwhile goes to the caller's feed (logs, notifications) besides going to the caller natively, and what
would have been the reply of the inner call becomes part of the reply of the tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskgate.core import wire
from taskgate.core.meta import META
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.gateway.own_tools.notifications import with_news
from taskgate.gateway.own_tools.reply import relayed
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

_TRAVELS_ALONG = ("requestState", "inputResponses", META)


class InnerRequest(Request):
    __slots__ = ("_context", "_feed", "_outer", "_server")

    def __init__(self, context: Context, outer: Request, feed: Feed, server: str, method: str, params: Members) -> None:
        carried = outer.members()
        members = {**params, **{key: carried[key] for key in _TRAVELS_ALONG if key in carried}}
        decoded: dict[str, Any] = {key: wire.parse_strictly(bytes(value)) for key, value in members.items()}
        message = Message(Kind.REQUEST, outer.message.id, method, decoded, Raw(wire.join(members)))
        super().__init__(message, outer.caller, outer.outlet, outer.session, outer.envelope, outer.narrowing)
        self.inner = True
        self.carrier = outer.carrier
        self.inbox = outer.inbox
        self.span = outer.span
        self._context = context
        self._outer = outer
        self._feed = feed
        self._server = server

    @property
    def own_key(self) -> str:
        return self._outer.own_key

    async def answer_early(self, result: bytes) -> None:
        """The call goes on as a task: the tool's reply, with its news, goes out now."""
        self.answered = True
        reply = await with_news(self._context, self._outer, self._feed, relayed(result))
        await self._outer.answer_early(reply.encoded(self.generation))

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        raw = bytes(params) if params is not None else None
        if method == "notifications/progress":
            self._outer.notify(method, raw)
            return
        self._context.activity.heard(self._feed, self._server, method, raw)
        if method != "notifications/message" or self._outer.wants_log(log_level(raw)):
            self._outer.notify(method, raw)

    def wants_log(self, level: str) -> bool:
        return True


def log_level(params: bytes | None) -> str:
    value = wire.parse_strictly(params) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
