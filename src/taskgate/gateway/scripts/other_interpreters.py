"""Leave a script to another gateway whose interpreter can load its snapshot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from taskgate import clock
from taskgate.core.tasks.task import Task
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import HandOver
from taskgate.telemetry.logs import log

_LEASES_READ_S: Final = 0.25
"""How often to check whether the leases of other gateways are known, after a start or an outage of the database."""


class ScriptOver(Exception):
    """The script has ended, or belongs to another gateway."""


async def leave_to_another(records: TaskRecords, script: Task, fits: Callable[[str], bool]) -> None:
    """Make a live gateway with a matching interpreter version the owner of the script. Raises ScriptOver if there is one."""
    store = records.store.shared
    if store is None:
        return
    ours = store.ownership.owner
    while not store.may_declare_dead:
        await clock.sleep(_LEASES_READ_S)
    for other in store.replicas:
        if other.owner == ours or not fits(other.interpreter) or not store.is_alive(other.owner):
            continue
        if await records.retry_while_unavailable(partial(store.do, HandOver(script.id, other.owner))):
            log.info("a script was left to a gateway that can load its snapshot", task=script.id, gateway=other.owner)
            raise ScriptOver
    current = await records.retry_while_unavailable(partial(store.ask, FindTask(script.id)))
    if current is not None and current.owner != ours:
        # An earlier write, whose reply was lost, had made another gateway the owner, or this gateway was declared dead.
        raise ScriptOver
