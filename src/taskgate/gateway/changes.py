"""What changes under a running gateway: another plan is put in force, and other gateways on the same store do things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks.state import TaskState
from taskgate.core.token_bucket import BucketLevel, TokenBucket, take
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.dynamic_servers import DynamicServers, ScopeRecord
from taskgate.gateway.events import EventHub, ScopesChanged, TemporaryScopesChanged
from taskgate.gateway.governance.approvals import Approvals, warn_of_loose_ends
from taskgate.gateway.governance.pins import Annotations, Pins
from taskgate.gateway.governance.standing_grants import FOR_EVER_MS, KnownPeople
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import CancelNote
from taskgate.ports.replicas import APPROVALS, DEAD, LISTS, MISSED, POLL_S, TASKS, Wakeups, read_list_hint
from taskgate.ports.store import IdentityRecord, Store
from taskgate.ports.task_store import TaskStore
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log

# Putting another plan in force while the gateway runs. The only place that replaces the plan and the upstreams.


SERVER: Final = "server"
"""The kind of record that says how a server is to be used at all gateways on the store."""
_DRAINED: Final = b"drained"


@dataclass(frozen=True, slots=True)
class Configured:
    """What the operator's own configuration comes to, without servers that callers added."""

    plan: Plan
    upstreams: Mapping[str, Upstream]


@dataclass(slots=True, eq=False, kw_only=True)
class Reload:
    configured: Configured
    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    dynamic_servers: DynamicServers
    temporary_scopes: TemporaryScopes
    people: KnownPeople
    views: Views
    catalogs: Catalogs
    activity: Activity
    budgets: Budgets
    admission: Admission
    scope_record: ScopeRecord
    pins: Pins
    annotations: Annotations
    store: Store
    separated: SeparatedServers
    events: EventHub
    drained: frozenset[str] = field(default=frozenset())
    """Servers that somebody took out of every scope, until they are enabled; where no other gateway shares the store also until
    this one is restarted."""

    def __post_init__(self) -> None:
        self.events.subscribe(TemporaryScopesChanged, self._temporary_scopes_changed)

    def adopt(self, configured: Configured, changed: frozenset[str]) -> None:
        """The new plan holds from the next request on; requests under way end under the old one."""
        before = self.plan.value
        self.configured = configured
        plan, upstreams = self.dynamic_servers.merged(configured.plan, configured.upstreams)
        plan = self._without_drained(plan)
        plan = self.temporary_scopes.merged(replace(plan, revision=max(plan.revision, before.revision + 1)))
        plan = self.people.merged(plan)
        self.plan.replace(plan)
        self.upstreams.replace(upstreams)
        self.separated.apply()
        self.catalogs.adopt(changed, plan.limits)
        self.activity.adopt(plan.limits)
        self.budgets.adopt(plan)
        self.admission.adopt(plan.limits)
        self.scope_record.start_over()
        if before.gates is not plan.gates:
            self.pins.adopt(self.catalogs.offers())
            self.annotations.adopt(self.catalogs.offers())
            warn_of_loose_ends(plan.gates, self.store)
        if before.registry is not plan.registry or before.scopes != plan.scopes or before.gates is not plan.gates:
            self.events.publish(ScopesChanged())

    async def drain(self, name: str, *, drained: bool) -> None:
        """Take a server out of every scope, or put it back, at every gateway on the store. Its connections and the calls under
        way stay."""
        if self.store.revisions is not None:
            body = _DRAINED if drained else b""
            until_ms = FOR_EVER_MS if drained else self.store.now_ms()
            await self.store.keep_identity_record(IdentityRecord(SERVER, name, "", until_ms, body), announce=True)
        self._adopt_drained(self.drained | {name} if drained else self.drained - {name})

    async def drained_elsewhere(self) -> None:
        """Another gateway on the same store may have taken a server out, or put it back."""
        kept = await self.store.identity_records(SERVER)
        self._adopt_drained(frozenset(record.name for record in kept if record.body == _DRAINED))

    def _adopt_drained(self, drained: frozenset[str]) -> None:
        if drained != self.drained:
            self.drained = drained
            self.adopt(self.configured, frozenset())

    def _without_drained(self, plan: Plan) -> Plan:
        if not self.drained:
            return plan
        records = plan.registry.records.values()
        kept = [replace(one, enabled=False) if one.id in self.drained else one for one in records]
        return replace(plan, registry=plan.registry.replaced_by(kept))

    def dynamic_servers_changed(self, name: str) -> None:
        """A server was added or removed by a caller: everything else stays as the operator has it."""
        self.adopt(self.configured, frozenset({name}))

    async def dynamic_servers_changed_elsewhere(self) -> None:
        """Another gateway on the same store may have added or removed some."""
        changed = await self.dynamic_servers.synchronize()
        if changed:
            self.adopt(self.configured, changed)

    def _temporary_scopes_changed(self, event: TemporaryScopesChanged) -> None:
        """The same plan with other temporary scopes. Their names are never used twice, so nothing else is worked out anew."""
        plan, _ = self.dynamic_servers.merged(self.configured.plan, self.configured.upstreams)
        plan = self.temporary_scopes.merged(replace(plan, revision=self.plan.value.revision))
        self.plan.replace(replace(self.plan.value, scopes=plan.scopes, temporary_scopes=plan.temporary_scopes))
        self.views.forget(event.gone)


# What a gateway keeps a copy of in memory although other gateways on the same store may change it: standing grants,
# pins, temporary scopes, added servers.
#
# Each kind has a revision in the store that every change counts up. A change is announced, and the revisions are read
# with every renewal of the lease besides. A durable call compares revisions once more inside the transaction of its
# intent. A plain call writes nothing, so it goes only while every copy was confirmed to be current within the last
# seconds; beyond that it is refused. A store that one gateway has to itself has none of this.

CONFIRMED_WITHIN_S: Final = 5.0


class SharedCaches:
    """`loads` reads each kind anew."""

    def __init__(
        self, store: TaskStore, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> None:
        self._store = store
        self._plan = plan
        self._loads = loads
        self._loaded: dict[str, int] = {}
        self._confirmed_at = float("-inf")

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._loads)

    async def load_all(self) -> None:
        """At the start. What has just been read is current, also before a renewal of the lease has said so."""
        before = clock.monotonic()
        for topic in self._loads:
            await self.load(topic)
        self._confirmed_at = before

    async def load(self, topic: str) -> None:
        """The revision is read before the rows: they may be newer than it says, never older."""
        revision = (await self._store.read_revisions()).get(topic, 0)
        await self._loads[topic]()
        self._loaded[topic] = revision
        self._store.now_known(topic, revision)

    async def load_if_changed(self, topic: str) -> None:
        """For the poll: nothing is read as long as the renewals of the lease show the revision that we have."""
        seen = self._store.revisions
        if seen is None or seen.numbers.get(topic, 0) != self._loaded.get(topic):
            await self.load(topic)

    def check(self) -> None:
        """Raises GatewayFault where a copy may be out of date for too long."""
        if clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S or self._confirm():
            return
        if not self._plan.value.features.degraded_passthrough:
            raise GatewayFault(
                "store_unavailable",
                f"What the gateway knows of grants, pins and scopes was not confirmed by its store for {CONFIRMED_WITHIN_S:.0f} "
                "seconds. The call was not executed; try again soon.",
                retry_after_s=1.0,
            )

    def _confirm(self) -> bool:
        seen = self._store.revisions
        if seen is not None:
            self._confirmed_at = max(self._confirmed_at, seen.current_at(self._loaded))
        return clock.monotonic() - self._confirmed_at <= CONFIRMED_WITHIN_S


def shared_caches(
    store: TaskStore, plan: Live[Plan], loads: Mapping[str, Callable[[], Awaitable[object]]]
) -> SharedCaches | None:
    """None where no other gateway can change anything."""
    return None if store.revisions is None else SharedCaches(store, plan, loads)


# What other gateways on the same store did, carried out here: whoever waits looks again, runs stop or start, tasks are
# taken over.
#
# There is nothing of this for a store that one gateway has to itself. Announcements only say what to look at; the store
# is the truth, and what is waited for here is looked at every two seconds even if none comes.

_PAUSE_S: Final = 0.5
_POLL_SHARE: Final = 10
"""Looking at everything takes at most one part in so many of the time."""
LISTS_ANEW: Final = TokenBucket(per_second=0.5, burst=5)
"""How often lists are asked for because of what other gateways heard: a server may give each of us another list every time."""


class ListHints:
    """Servers to be asked for their lists again, at once or as soon as their turn has come."""

    def __init__(self, changed: Callable[[str, Collection[EntryKind]], None]) -> None:
        self._changed = changed
        self._levels: dict[str, BucketLevel] = {}
        self._waiting: dict[str, set[EntryKind]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def came(self, server: str, kinds: Collection[EntryKind]) -> None:
        if server in self._waiting:
            self._waiting[server].update(kinds)
            return
        self._levels[server], wait_s = take(LISTS_ANEW, self._levels.get(server), clock.monotonic())
        if not wait_s:
            self._changed(server, kinds)
            return
        self._waiting[server] = set(kinds)
        self._timers[server] = asyncio.get_running_loop().call_later(wait_s, self._turn, server)

    def _turn(self, server: str) -> None:
        del self._timers[server]
        self.came(server, self._waiting.pop(server))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


class OtherGateways:
    def __init__(
        self,
        *,
        wakeups: Wakeups | None,
        records: TaskRecords,
        runs: Runs,
        questions: TaskQuestions,
        approvals: Approvals,
        recovery: Recovery,
        caches: SharedCaches | None,
        catalogs: Catalogs,
    ) -> None:
        """`wakeups` and `caches` are None where there are no others."""
        self._wakeups = wakeups
        self._records = records
        self._runs = runs
        self._questions = questions
        self._approvals = approvals
        self._recovery = recovery
        self._caches = caches
        self._catalogs = catalogs
        self._list_hints = ListHints(partial(catalogs.changed, elsewhere=True))
        self._loops: list[asyncio.Task[None]] = []
        self._was_deaf = False
        """What was missed has still to be looked for: the store may be in trouble when that is tried first."""

    def start(self) -> None:
        if self._wakeups is None:
            return
        todo: dict[str, Callable[[frozenset[str] | None], Awaitable[None]]]
        todo = {TASKS: self._tasks, APPROVALS: self._open_approvals, DEAD: self._dead, LISTS: self._lists}
        todo[MISSED] = self._missed
        if self._caches is not None:
            todo |= {topic: self._loading(self._caches, topic) for topic in self._caches.topics}
        self._loops = [
            asyncio.get_running_loop().create_task(look_out(self._wakeups, topic, act)) for topic, act in todo.items()
        ]

    async def close(self) -> None:
        self._list_hints.close()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _tasks(self, names: frozenset[str] | None) -> None:
        """None: everything that anybody here waits for, or that runs here."""
        wanted = names if names is not None else self._records.changes.awaited | self._runs.running_ids
        for task_id in wanted:
            await self._look_at(task_id, announced=names is not None)

    async def _look_at(self, task_id: str, *, announced: bool) -> None:
        task = await self._records.store.get(task_id)
        if task is None:
            return
        await self._questions.check_stored_answers(task_id)
        if announced or task.state.is_terminal:
            self._records.changes.changed(task)
        if task.owner != self._records.store.ownership.owner:
            self._runs.abandon(task_id)
            return
        if task.state is TaskState.CANCELLED and (self._runs.is_running(task_id) or task.cancel_owed):
            await self._runs.cancel(task, CancelNote())
        else:
            await self._approvals.task_changed_elsewhere(task)

    def _loading(self, caches: SharedCaches, topic: str) -> Callable[[frozenset[str] | None], Awaitable[None]]:
        async def load(names: frozenset[str] | None) -> None:
            await (caches.load(topic) if names is not None else caches.load_if_changed(topic))

        return load

    async def _open_approvals(self, names: frozenset[str] | None) -> None:
        for approval_id in names or ():
            self._approvals.changed_elsewhere(approval_id)

    async def _lists(self, names: frozenset[str] | None) -> None:
        told: dict[str, set[EntryKind]] = {}
        for server, said in map(read_list_hint, names or ()):
            told.setdefault(server, set()).update(kind for kind in EntryKind if kind.value == said)
        for server, kinds in told.items():
            self._list_hints.came(server, kinds)

    async def _missed(self, names: frozenset[str] | None) -> None:
        """What others announced meanwhile, about lists and approvals, is not known: ask every server again, tell callers that
        lists which change may have changed, and look at the approvals that somebody here waits for or was told of, and at what
        became of our tasks."""
        self._was_deaf = self._was_deaf or names is not None
        if not self._was_deaf:
            return
        await self._approvals.look_again()
        await self._decided_meanwhile()
        for server, kinds in self._catalogs.changeable().items():
            self._list_hints.came(server, kinds)
        self._was_deaf = False

    async def _decided_meanwhile(self) -> None:
        """Tasks of ours that others have approved or cancelled: nobody need wait for them here, so the usual look misses them."""
        after = ""
        while tasks := await self._records.store.claimed(after):
            for task in tasks:
                if task.state in (TaskState.APPROVED, TaskState.CANCELLED):
                    await self._look_at(task.id, announced=False)
            after = tasks[-1].id

    async def _dead(self, names: frozenset[str] | None) -> None:
        if names is not None:
            await self._recovery.take_over_dead()
            await self._approvals.take_over()


async def look_out(wakeups: Wakeups, topic: str, act: Callable[[frozenset[str] | None], Awaitable[None]]) -> None:
    """Everything is looked at now and then even while hints keep coming: the one that was lost is not among them."""
    due = clock.monotonic() + POLL_S
    while True:
        names = await wakeups.wait(topic, max(0.0, due - clock.monotonic()))
        try:
            if names is not None:
                await act(names)
            if names is None or clock.monotonic() >= due:
                began = clock.monotonic()
                await act(None)
                took = clock.monotonic() - began
                due = clock.monotonic() + max(POLL_S, _POLL_SHARE * took)
        except Exception as fault:  # one round of a background loop: the next one looks again
            log.warning("could not look at what other gateways did", topic=topic, why=str(fault))
            await clock.sleep(_PAUSE_S)
