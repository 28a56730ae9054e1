"""Which use case handles which method, in each generation. A method that is not in the table does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.generations.stateful import supports_tasks
from taskgate.core.scoping.scope import ScopeMode
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup, unknown_tool
from taskgate.gateway.calls.readings import Readings
from taskgate.gateway.calls.skills import Skills
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.methods.caller_notifications import forward_log_level
from taskgate.gateway.methods.catalog_lists import list_catalog
from taskgate.gateway.methods.completion import Completing
from taskgate.gateway.methods.following import Following
from taskgate.gateway.methods.handshake import discover_result
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.own_tools.own_tools import OwnTools
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.methods import TaskMethods
from taskgate.ports.upstream import Upstream

UseCase = Callable[[Request], Awaitable[bytes]]


class Methods(msgspec.Struct, frozen=True):
    """The use cases."""

    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    tool_calls: ToolCalls
    durable: DurableCalls
    own_tools: OwnTools
    readings: Readings
    skills: Skills
    completing: Completing
    following: Following
    tasks: TaskMethods
    dynamic_servers: DynamicServers


class MethodTables(msgspec.Struct, eq=False):
    _methods: Methods
    _shared: SharedSessions | None
    """Set if other gateways can take over a session, so that changes of the session must be stored."""

    def stateful(self) -> dict[str, UseCase]:
        methods, listing = self._methods, self._list_catalog
        return {
            "ping": _pong,
            "tools/list": listing,
            "prompts/list": listing,
            "resources/list": listing,
            "resources/templates/list": listing,
            "tools/call": self._call_tool(),
            "prompts/get": methods.readings.get_prompt,
            "resources/read": self._read_resource,
            "resources/subscribe": self._stored(methods.following.subscribe),
            "resources/unsubscribe": self._stored(methods.following.unsubscribe),
            "completion/complete": methods.completing.complete,
            **self._skill_methods(),
            "logging/setLevel": self._stored(self._set_log_level),
            "tasks/get": _if_tasks_exist(methods.tasks.get),
            "tasks/result": _if_tasks_exist(methods.tasks.result),
            "tasks/list": _if_tasks_exist(methods.tasks.list),
            "tasks/cancel": _if_tasks_exist(methods.tasks.cancel),
        }

    def stateless(self) -> dict[str, UseCase]:
        methods, listing = self._methods, self._list_catalog
        return {
            "server/discover": self._discover,
            "tools/list": listing,
            "prompts/list": listing,
            "resources/list": listing,
            "resources/templates/list": listing,
            "tools/call": self._call_tool(),
            "prompts/get": methods.readings.get_prompt,
            "resources/read": self._read_resource,
            "completion/complete": methods.completing.complete,
            **self._skill_methods(),
            "subscriptions/listen": methods.following.listen,
            "tasks/get": methods.tasks.get,
            "tasks/update": methods.tasks.update,
            "tasks/cancel": methods.tasks.cancel,
        }

    def _call_tool(self) -> UseCase:
        call, call_own = self._methods.tool_calls.call, self._call_own
        return lambda request: call(request, call_own)

    async def _call_own(self, request: Request) -> bytes:
        """Call a tool of the gateway, or a server's tool that is not listed. Raises `unknown_tool`."""
        methods = self._methods
        own = await methods.own_tools.find(request)
        if own is not None:
            return await methods.own_tools.call(request, own)
        view = await methods.lookup.view(request)
        if view.scope.mode is ScopeMode.FACADE:
            name = str(request.params.get("name"))
            tool = view.tool(name)
            if tool is None or tool.is_for_model:
                raise unknown_tool(name)
            # A tool that is not for the model is for apps, which call it by its name.
        return await methods.tool_calls.call(request)

    async def _read_resource(self, request: Request) -> bytes:
        own = await self._methods.own_tools.read_resource(request)
        return own if own is not None else await self._methods.readings.read_resource(request)

    def _list_catalog(self, request: Request) -> Awaitable[bytes]:
        return list_catalog(self._methods.lookup, self._methods.dynamic_servers, request)

    def _skill_methods(self) -> dict[str, UseCase]:
        skills = self._methods.skills
        return {
            "skills/list": self._list_skills,
            "skills/get": skills.get,
            "resources/directory/read": skills.read_directory,
        }

    async def _list_skills(self, request: Request) -> bytes:
        await self._methods.skills.discovery.run(request)
        return await self._list_catalog(request)

    def _stored(self, use_case: UseCase) -> UseCase:
        """Reply only after the change of the session is stored."""
        shared = self._shared
        if shared is None:
            return use_case

        async def answer(request: Request) -> bytes:
            result = await use_case(request)
            assert request.session is not None
            await shared.changed(request.session)
            return result

        return answer

    async def _discover(self, request: Request) -> bytes:
        lookup, scope = self._methods.lookup, request.caller.scope
        subset = lookup.views.subset(lookup.plan.value, scope, request.narrowing)
        await lookup.catalogs.settled(subset.servers)
        more_skills = self._methods.skills.discovery.is_needed(subset.servers)
        return await discover_result(lookup, scope, subset.servers, more_skills=more_skills)

    async def _set_log_level(self, request: Request) -> bytes:
        session = request.session
        assert session is not None
        level = request.params.get("level")
        session.set_log_level(level if type(level) is str else "")
        methods = self._methods
        await forward_log_level(methods.lookup, methods.upstreams.value, session, session.log_level or "info")
        return b"{}"


def _if_tasks_exist(use_case: UseCase) -> UseCase:
    """Older stateful revisions have no tasks, so these methods do not exist there."""

    def answer(request: Request) -> Awaitable[bytes]:
        if request.session is not None and not supports_tasks(request.session.version):
            raise unknown_method(request.message.method)
        return use_case(request)

    return answer


def unknown_method(method: str) -> CallerError:
    return CallerError("method_not_found", f"There is no method {method[:80]!r} in this revision.")


async def _pong(_request: Request) -> bytes:
    return b"{}"
