"""A script and the earlier ones that it resumes, each by `resume_of`: one history of calls.

A corrected script that fails is corrected again, so a call may have been made by any script of the chain. The chain is read from
the arguments of each script: one that failed before its first step has no other record.
"""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.scripts.given_script import read_given
from taskgate.core.tasks.task import Task
from taskgate.ports.store import Store
from taskgate.store.operations.scripts import CallsOfScript, ScriptCall
from taskgate.store.operations.task_queries import FindTask

MAX_SCRIPTS: Final = 100
"""Scripts of one chain. Each is read when the next one starts."""
_CALLS_PER_READ: Final = 1_000


class ChainPart(msgspec.Struct, frozen=True):
    """A script of a chain, and the calls that it made itself."""

    script: str
    calls: tuple[ScriptCall, ...]


def resumed_by(script: Task) -> str | None:
    """The script that this one resumes."""
    return read_given(script.arguments).resume_of


async def earlier_scripts(store: Store, script: Task) -> tuple[Task, ...]:
    """The scripts that this one resumes, the first one first. Raises CallerError unless all of them are known, have ended and
    belong to the same caller and scope.
    """
    found, problem = await _followed(store, script)
    if problem is not None:
        raise problem
    return found


async def kept_scripts(store: Store, script: Task) -> tuple[Task, ...]:
    """Those of the earlier scripts that are still kept, the first one first."""
    return (await _followed(store, script))[0]


async def _followed(store: Store, script: Task) -> tuple[tuple[Task, ...], CallerError | None]:
    found: list[Task] = []
    problem: CallerError | None = None
    named = resumed_by(script)
    while named is not None and problem is None:
        before = await store.ask(FindTask(named)) if len(found) < MAX_SCRIPTS else None
        problem = _problem(script, before, found, named)
        if before is not None and problem is None:
            found.append(before)
            named = resumed_by(before)
    return tuple(reversed(found)), problem


def _problem(script: Task, before: Task | None, found: list[Task], named: str) -> CallerError | None:
    """Why the script `before` cannot be resumed."""
    if len(found) == MAX_SCRIPTS:
        return CallerError("invalid_params", f"At most {MAX_SCRIPTS} scripts can resume one another.")
    same = before is not None and before.script and (before.principal, before.scope) == (script.principal, script.scope)
    if before is None or not same:
        return CallerError("unknown_task", _unknown(named, found))
    if not before.state.is_terminal:
        return CallerError("script_open", "The script to resume has not ended. Wait for it, or cancel it.")
    return None


def _unknown(named: str, found: list[Task]) -> str:
    if not found:
        return "There is no such script to resume, or it is no longer kept."
    return (
        f"The script to resume had itself resumed {named}, which is no longer kept: calls that it made could be repeated. "
        "Read the reports of the later scripts, and run a script without resume_of that leaves out the calls that were executed."
    )


async def calls_of(store: Store, script_id: str) -> tuple[ScriptCall, ...]:
    """Every tool call that a script made itself, in the order in which it made them."""
    calls: list[ScriptCall] = []
    after = -1
    while found := await store.ask(CallsOfScript(script_id, after, _CALLS_PER_READ)):
        calls += found
        after = found[-1].number
    return tuple(calls)


async def kept_chain(store: Store, script: Task) -> tuple[ChainPart, ...]:
    """The calls of the earlier scripts that are still kept, and of the script itself at the end."""
    scripts = (*await kept_scripts(store, script), script)
    return tuple([ChainPart(one.id, await calls_of(store, one.id)) for one in scripts])
