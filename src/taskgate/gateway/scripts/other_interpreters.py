"""Leave a script to another gateway whose interpreter can load its snapshot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from taskgate import clock
from taskgate.core.tasks.task import Task
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.telemetry.logs import log

_LEASES_READ_S: Final = 0.25
"""How often to check whether the leases of other gateways are known, after a start or an outage of the database."""


class ScriptOver(Exception):
    """The script has ended, or belongs to another gateway."""


async def leave_to_another(records: TaskRecords, script: Task, fits: Callable[[str], bool]) -> None:
    """Make a live gateway with a matching interpreter version the owner of the script. Raises ScriptOver if there is one."""
    store = records.store
    rows = store.sessions
    if rows is None:
        return
    while not rows.may_declare_dead:
        await clock.sleep(_LEASES_READ_S)
    for other in store.replicas:
        if other.owner == rows.owner or not fits(other.interpreter) or not rows.is_alive(other.owner):
            continue
        if await records.retry_while_unavailable(partial(store.hand_over, script.id, other.owner)):
            log.info("a script was left to a gateway that can load its snapshot", task=script.id, gateway=other.owner)
            raise ScriptOver
    current = await records.retry_while_unavailable(partial(store.get, script.id))
    if current is not None and current.owner != rows.owner:
        # An earlier write, whose reply was lost, had made another gateway the owner, or this gateway was declared dead.
        raise ScriptOver
