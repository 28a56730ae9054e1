"""Which use case answers which method, in each generation. A method that is not in its table does not exist there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from taskgate.core.errors import CallerError
from taskgate.core.generations import speaks_tasks
from taskgate.core.scoping.scope import ScopeMode
from taskgate.gateway.calls.call_tool import call_tool
from taskgate.gateway.calls.context import Context, unknown_tool
from taskgate.gateway.calls.read_things import get_prompt, read_resource
from taskgate.gateway.methods.handshake import complete, discover_result, list_catalog
from taskgate.gateway.methods.notifications import links_of
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.own_tools.table import call_own_tool, own_tool, read_own_resource
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine

UseCase = Callable[[Request], Awaitable[bytes]]


class MethodTables:
    def __init__(
        self, context: Context, subscriptions: Subscriptions, tasks: TaskEngine, shared: SharedSessions | None
    ) -> None:
        """`shared`: where other gateways would go on with a session, what is set in it must reach them."""
        self.shared = shared
        self._context = context
        self._subscriptions = subscriptions
        self._tasks = tasks

    def stateful(self) -> dict[str, UseCase]:
        listing = self._using(list_catalog)
        return {
            "ping": _pong,
            "tools/list": listing,
            "prompts/list": listing,
            "resources/list": listing,
            "resources/templates/list": listing,
            "tools/call": self._call_tool(),
            "prompts/get": self._using(get_prompt),
            "resources/read": self._read_resource,
            "resources/subscribe": self._kept(self._using(self._subscriptions.subscribe)),
            "resources/unsubscribe": self._kept(self._using(self._subscriptions.unsubscribe)),
            "completion/complete": self._using(complete),
            "logging/setLevel": self._kept(self._set_log_level),
            "tasks/get": _where_tasks_exist(self._tasks.methods.get),
            "tasks/result": _where_tasks_exist(self._tasks.methods.result),
            "tasks/list": _where_tasks_exist(self._tasks.methods.list),
            "tasks/cancel": _where_tasks_exist(self._tasks.methods.cancel),
        }

    def stateless(self) -> dict[str, UseCase]:
        listing = self._using(list_catalog)
        return {
            "server/discover": self._discover,
            "tools/list": listing,
            "prompts/list": listing,
            "resources/list": listing,
            "resources/templates/list": listing,
            "tools/call": self._call_tool(),
            "prompts/get": self._using(get_prompt),
            "resources/read": self._read_resource,
            "completion/complete": self._using(complete),
            "subscriptions/listen": self._using(self._subscriptions.listen),
            "tasks/get": self._tasks.methods.get,
            "tasks/update": self._tasks.methods.update,
            "tasks/cancel": self._tasks.methods.cancel,
        }

    def _call_tool(self) -> UseCase:
        return partial(call_tool, self._context, not_listed=self._call_own)

    async def _call_own(self, request: Request) -> bytes:
        """The name is one of our own tools, or of a server's tool that is not listed, or of nothing."""
        context = self._context
        own = await own_tool(context, request)
        if own is not None:
            return await call_own_tool(context, request, own)
        scope = context.live_plan.value.scopes.get(request.caller.scope)
        if scope is not None and scope.mode is ScopeMode.FACADE:
            raise unknown_tool(str(request.params.get("name")))
        return await call_tool(context, request)

    async def _read_resource(self, request: Request) -> bytes:
        own = await read_own_resource(self._context, request)
        return own if own is not None else await read_resource(self._context, request)

    def _using(self, use_case: Callable[[Context, Request], Awaitable[bytes]]) -> UseCase:
        context = self._context
        return lambda request: use_case(context, request)

    def _kept(self, use_case: UseCase) -> UseCase:
        """Answered when what it changed in the session is durable."""
        shared = self.shared
        if shared is None:
            return use_case

        async def answer(request: Request) -> bytes:
            result = await use_case(request)
            assert request.session is not None
            await shared.changed(request.session)
            return result

        return answer

    async def _discover(self, request: Request) -> bytes:
        context = self._context
        subset = context.views.subset(context.plan, request.caller.scope, request.narrowing)
        return await discover_result(context, request.caller.scope, subset.servers)

    async def _set_log_level(self, request: Request) -> bytes:
        session = request.session
        assert session is not None
        level = request.params.get("level")
        session.set_log_level(level if type(level) is str else "")
        for link in links_of(self._context, session):
            await link.set_log_level(session.log_level or "info")
        return b"{}"


def _where_tasks_exist(use_case: UseCase) -> UseCase:
    """Older stateful revisions have no tasks: there these methods do not exist."""

    def answer(request: Request) -> Awaitable[bytes]:
        if request.session is not None and not speaks_tasks(request.session.version):
            raise no_such_method(request.message.method)
        return use_case(request)

    return answer


def no_such_method(method: str) -> CallerError:
    return CallerError("method_not_found", f"There is no method {method[:80]!r} in this revision.")


async def _pong(_request: Request) -> bytes:
    return b"{}"
