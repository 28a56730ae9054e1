"""Find and call the gateway's own tools, and read its own resources."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.own_tools import Family
from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import cached_privately
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.own_tools.own_resources import ResourceParts, own_content
from taskgate.gateway.own_tools.reply_events import with_events
from taskgate.gateway.own_tools.shown_tools import callable_families
from taskgate.gateway.own_tools.tool import BoundTool, ToolReply, failed, refused
from taskgate.gateway.requests.replies import executed_stated
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream_replies import RelayedError


class OwnTools(msgspec.Struct, frozen=True):
    """The own tools, bound to the parts that they use, and the own resources."""

    lookup: Lookup
    tools: Mapping[str, BoundTool]
    resources: ResourceParts
    denials: Denials

    async def find(self, request: Request) -> BoundTool | None:
        """The own tool that a call names, or None if it names a server's tool."""
        name = request.params.get("name")
        tool = self.tools.get(name) if type(name) is str else None
        if tool is None:
            return None
        view = await self.lookup.view(request)
        if tool.face.family not in callable_families(view.scope) or name in view.tools:
            return None
        off = view.plan.features.task_card is TaskCard.OFF
        return None if tool.face.family is Family.CARD and off else tool

    async def call(self, request: Request, tool: BoundTool) -> bytes:
        """Run the tool. Errors become results with the next step, because models see results."""
        if "task" in request.params and not tool.face.as_task:
            raise CallerError(
                "task_forbidden",
                f"{tool.face.name!r} cannot be called as a task. It was not executed.",
                data={"tool": tool.face.name, "reason": "The gateway answers this tool itself, without delay."},
            )
        feed = await self.resources.activity.feed(request)
        reply: ToolReply | bytes
        try:
            reply = await tool.use(request, tool.face.read(request.params.get("arguments")))
        except RelayedError as problem:
            error = wire.parse_strictly(problem.raw)
            reply = refused(f"The server answered with an error: {error.get('message')} (code {problem.code})")
        except TaskgateError as problem:
            self.denials.request_refused(request, problem)
            reply = failed(problem, executed_stated(problem, request.message))
        if request.delivery.answered or isinstance(reply, bytes):
            return reply if isinstance(reply, bytes) else b"{}"
        if not tool.bare:
            reply = await with_events(self.resources.activity.inbox, request, feed, reply)
        return reply.encoded(request.generation)

    async def read_resource(self, request: Request) -> bytes | None:
        """The content of an own resource, or None if the URI is not that of one."""
        uri = request.params.get("uri")
        content = await own_content(self.resources, request, uri) if type(uri) is str else None
        if content is None:
            return None
        body = wire.encode({"contents": [content]})
        return cached_privately(body) if request.generation is Generation.STATELESS else body
