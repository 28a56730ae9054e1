"""Build and cache the views: what one scope, narrowed by one session, can see and call.

A view is built once per change of the plan or of the lists; afterwards each lookup is in a dictionary. The decision for each tool
is made when the view is built, by the same function that decides a call, so lists and calls agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.facts.table import Facts
from taskgate.core.governance.decision import Denied
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import NO_REQUEST, SessionRequest
from taskgate.core.scoping.subset import Subset, compose
from taskgate.gateway.catalog.build_view import build_view
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.refs import PromptRef as PromptRef
from taskgate.gateway.catalog.refs import ToolRef as ToolRef
from taskgate.gateway.catalog.shown_addresses import HeldAddresses
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.snapshot import CatalogSnapshot
from taskgate.gateway.catalog.view import View as View
from taskgate.gateway.plan import Plan
from taskgate.gateway.scope_record import ScopeRecord
from taskgate.telemetry.logs import log

MAX_VIEWS: Final = 2000
BUILT_AT_ONCE: Final = 200
"""Views up to this size are built on the event loop, in a few milliseconds."""
MAX_REBUILDS: Final = 3
"""How often a view is built in a thread and discarded because the lists changed meanwhile. After that it is built on the event
loop.
"""
_Distinguished = tuple[Any, ...]
"""What rules distinguish a caller by; empty if no rule does."""
_BuildKey = tuple[str, SessionRequest, _Distinguished, int, int]
"""Key of a view being built: scope and session request, what distinguishes the caller, and revisions of the plan and the lists."""


def facts_of_caller(plan: Plan, caller: Caller, *, from_script: bool = False) -> Facts:
    """Return what rules can distinguish callers by."""
    return Facts(
        scope=caller.scope,
        principal=caller.principal,
        token_id=plan.governing.token_of(caller.principal),
        roles=caller.roles,
        from_script=from_script,
    )


def _policy(plan: Plan, scope: str) -> ScopePolicy:
    """Return the scope in force. A scope that a reload removed is empty for the sessions still open in it."""
    return plan.scopes.get(scope) or ScopePolicy(scope, enabled=False)


class Views:
    """Caches the views in use; each is rebuilt when the plan or the lists have changed."""

    def __init__(self, catalogs: Catalogs, scope_record: ScopeRecord, slow_tools: SlowTools) -> None:
        self._catalogs = catalogs
        self._slow_tools = slow_tools
        self._lists = catalogs.revision
        self._scope_record = scope_record
        self._views: dict[tuple[str, SessionRequest, _Distinguished], tuple[int, int, View]] = {}
        self._whole: dict[str, tuple[int, int, View]] = {}
        """Views of callers that do not narrow their scope and that no rule distinguishes, which is most of them."""
        self._subsets: dict[tuple[str, SessionRequest, bool], tuple[int, Subset]] = {}
        self._held = HeldAddresses()
        self._building: dict[_BuildKey, asyncio.Task[View]] = {}

    def subset(self, plan: Plan, scope: str, narrowing: SessionRequest, strict: bool = False) -> Subset:
        """Return the subset of a session. With `strict`, servers outside the scope raise NotAllowed."""
        key = (scope, narrowing, strict)
        found = self._subsets.get(key)
        if found is not None and found[0] == plan.revision:
            return found[1]
        subset = compose(plan.registry, _policy(plan, scope), narrowing, strict=strict)
        if len(self._subsets) >= MAX_VIEWS:
            self._subsets.clear()
        self._subsets[key] = (plan.revision, subset)
        other = self._subsets.get((scope, narrowing, not strict))
        if other is None or other[0] != plan.revision:
            self._scope_record.composed(subset)
        return subset

    def forget(self, scopes: frozenset[str]) -> None:
        """Drop the views of removed scopes."""
        self._held.forget(scopes)
        for scope in scopes:
            self._whole.pop(scope, None)
        for of_scope in [key for key in self._views if key[0] in scopes]:
            del self._views[of_scope]
        for stored in [stored for stored in self._subsets if stored[0] in scopes]:
            del self._subsets[stored]

    def current(
        self, plan: Plan, caller: Caller, narrowing: SessionRequest, *, from_script: bool = False
    ) -> View | None:
        """Return the view if it is current: the only lookup on the hot path."""
        if narrowing is NO_REQUEST and not plan.gates.rules.facts_of_callers:
            found = self._whole.get(caller.scope)
        else:
            key = plan.gates.caller_key(facts_of_caller(plan, caller, from_script=from_script))
            found = self._views.get((caller.scope, narrowing, key))
        if found is not None and found[0] == plan.revision and found[1] == self._lists.number:
            return found[2]
        return None

    async def view(
        self,
        plan: Plan,
        caller: Caller,
        narrowing: SessionRequest,
        *,
        listing: bool = False,
        from_script: bool = False,
    ) -> View:
        """Return the caller's view, or that of its scripts. Only list requests wait for servers without known lists."""
        view = self.current(plan, caller, narrowing, from_script=from_script)
        if view is not None and self._catalogs.is_settled(view.subset.servers):
            return view
        subset = self.subset(plan, caller.scope, narrowing)
        await self._catalogs.settled(subset.servers, listing=listing)
        view = self.current(plan, caller, narrowing, from_script=from_script)
        return view or await self._built(
            plan, narrowing, subset, facts_of_caller(plan, caller, from_script=from_script)
        )

    async def _built(self, plan: Plan, narrowing: SessionRequest, subset: Subset, caller: Facts) -> View:
        """Return a view of the current lists. A large view is built in a thread, once for all callers that wait for it."""
        scope, distinguished = subset.scope, plan.gates.caller_key(caller)
        for _ in range(MAX_REBUILDS):
            number, lists = self._lists.number, self._catalogs.snapshot(subset.servers)
            if lists.count() <= BUILT_AT_ONCE:
                break
            key = (scope, narrowing, distinguished, plan.revision, number)
            view = await self._build_in_thread(plan, key, subset, lists, caller)
            if self._lists.number == number:
                return self._stored(plan, key[:3], view)
        lists = self._catalogs.snapshot(subset.servers)
        view = self._build(plan, subset, lists, self._held.of(scope), caller)
        return self._stored(plan, (scope, narrowing, distinguished), view)

    async def _build_in_thread(
        self, plan: Plan, key: _BuildKey, subset: Subset, lists: CatalogSnapshot, caller: Facts
    ) -> View:
        building = self._building.get(key)
        if building is None:
            work = asyncio.to_thread(self._build, plan, subset, lists, dict(self._held.of(subset.scope)), caller)
            building = self._building[key] = asyncio.get_running_loop().create_task(work)
            building.add_done_callback(lambda _: self._building.pop(key, None))
        return await asyncio.shield(building)

    def _build(
        self, plan: Plan, subset: Subset, lists: CatalogSnapshot, held: Mapping[str, str], caller: Facts
    ) -> View:
        policy = _policy(plan, subset.scope)
        return build_view(plan, policy, subset, lists, held, slow_tools=self._slow_tools, caller=caller)

    def _stored(self, plan: Plan, key: tuple[str, SessionRequest, _Distinguished], view: View) -> View:
        scope, narrowing, distinguished = key
        fresh = (plan.revision, self._lists.number, view)
        is_whole = narrowing is NO_REQUEST and not distinguished
        known = self._whole.get(scope) if is_whole else self._views.get(key)
        if known is not None and known[:2] == fresh[:2]:
            return known[2]
        self._held.keep(scope, view.addresses.unchanged())
        if len(self._views) >= MAX_VIEWS:
            self._views.clear()
        if is_whole:
            self._whole[scope] = fresh
        else:
            self._views[key] = fresh
        for note in view.notes:
            log.warning("catalog", note=note)
        self._record_tools(view)
        return view

    def _record_tools(self, view: View) -> None:
        subset = view.subset
        tools: dict[str, list[str]] = {s: [] for s in subset.servers if self._catalogs.offer(s) is not None}
        excluded: dict[str, str] = {}
        for tool in view.tools.values():
            if isinstance(tool.decision, Denied):
                excluded[f"{tool.server}:{tool.name}"] = "rule_denied"
            else:
                tools.setdefault(tool.server, []).append(tool.name)
        for server, name in view.withheld.get(PatternKind.TOOL, ()):
            why = subset.explain(server, name)
            excluded[f"{server}:{name}"] = why.reason.value if why is not None else "hidden"
        self._scope_record.shown(subset, tools, excluded)
