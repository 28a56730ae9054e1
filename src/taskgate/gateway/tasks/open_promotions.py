"""The promoted calls that still run, by the callers for whose limits they count.

A call that was sent is always stored as a task, also above the limit on open tasks. So that this is no way round the limit, a
caller whose promoted calls alone have reached it may make no more plain calls until one of them has ended. Each gateway counts the
calls that it carries, also those that the store could not take yet: their callers have a reply, so no other limit counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from taskgate.core.identity.addressees import has_conversation
from taskgate.core.identity.caller import ANONYMOUS_LIMIT
from taskgate.core.identity.identity import tenant_of
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.limit_errors import limit_error
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.runs import Runs
from taskgate.ports.store_answers import LimitHolder, TooManyOpen
from taskgate.store.operations.task_limits import ADDRESS_FACTOR

Holder = tuple[LimitHolder, str]
"""One of those for whose limit a call counts, and its name."""
_ADVICE: Final = "The call was not sent. Wait for one of them to end, or cancel one."


class OpenPromotions:
    def __init__(self, plan: Live[Plan], runs: Runs, events: EventHub) -> None:
        self._plan = plan
        self._runs = runs
        self.by_holder: dict[Holder, set[str]] = {}
        """The ids of the tasks that the promoted calls became or will become."""
        self._unstored: set[str] = set()
        """Ids of those that the store has not taken yet."""
        events.subscribe(TaskChanged, self._changed)

    def add(self, task: Task) -> None:
        self._add(task.id, _keys(task.caller, task.limited_as or task.caller))

    def add_unstored(self, task_id: str, request: Request) -> None:
        """Count a call that runs although the store could not accept it; its caller has received that error."""
        self._unstored.add(task_id)
        self._add(task_id, _keys(request.caller_key, request.caller.limit_key))

    def remove_unstored(self, task_id: str, request: Request) -> None:
        """The store has accepted the call, or its caller no longer waits for that."""
        if task_id in self._unstored:
            self._unstored.remove(task_id)
            self._remove(task_id, _keys(request.caller_key, request.caller.limit_key))

    def _changed(self, event: TaskChanged) -> None:
        if self.by_holder and event.task.state.is_terminal:
            self._remove(event.task.id, _keys(event.task.caller, event.task.limited_as or event.task.caller))

    def _add(self, task_id: str, keys: Iterable[Holder]) -> None:
        for key in keys:
            self.by_holder.setdefault(key, set()).add(task_id)

    def _remove(self, task_id: str, keys: Iterable[Holder]) -> None:
        for key in keys:
            open_here = self.by_holder.get(key)
            if open_here is not None:
                open_here.discard(task_id)
                if not open_here:
                    del self.by_holder[key]

    def refuse_at_limit(self, request: Request) -> None:
        """Raises GatewayFault before a plain call is sent, if promoted calls alone have reached a limit that it counts for."""
        for key in _keys(request.caller_key, request.caller.limit_key):
            open_here = self.by_holder.get(key)
            refused = _limit_of(self._plan.value, key[0])
            if open_here is None or refused is None or len(open_here) < refused.limit:
                continue
            # A task that another gateway has taken over ends without an event here.
            open_here.intersection_update(self._runs.running_ids | self._unstored)
            if len(open_here) >= refused.limit:
                raise limit_error(refused, _ADVICE)


def _keys(caller: str, limit_key: str) -> Iterator[Holder]:
    """What a call counts for, as in the limits on open tasks (`store/operations/task_limits.py`)."""
    tenant = tenant_of(limit_key)
    if tenant:
        yield LimitHolder.TENANT, tenant
    if not limit_key.startswith(ANONYMOUS_LIMIT):
        yield LimitHolder.CALLER, limit_key
        return
    if has_conversation(caller):
        yield LimitHolder.CONVERSATION, f"{limit_key} {caller}"
    yield LimitHolder.ADDRESS, limit_key


def _limit_of(plan: Plan, holder: LimitHolder) -> TooManyOpen | None:
    limits, what = plan.limits, "calls that continue as tasks"
    if holder is LimitHolder.TENANT:
        if limits.open_tasks_per_tenant is None:
            return None
        return TooManyOpen(
            f"{what} of all callers of your tenant", limits.open_tasks_per_tenant, "open_tasks_per_tenant", holder
        )
    if holder is LimitHolder.ADDRESS:
        most = limits.open_tasks_per_caller * ADDRESS_FACTOR
        return TooManyOpen(
            f"{what} of all callers without a token at your address", most, "open_tasks_per_caller", holder
        )
    where = " in this session" if holder is LimitHolder.CONVERSATION else ""
    return TooManyOpen(f"{what}{where}", limits.open_tasks_per_caller, "open_tasks_per_caller", holder)
