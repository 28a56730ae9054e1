"""Storage of scripts: one record per script, replaced at each step, and the calls that the script made.

A step is one transaction: the snapshot, the counters, the marks of the outcomes that were delivered, and the tasks of the new
calls. So a call exists if and only if the snapshot that waits for it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.scripts.record import ScriptRecord
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import AlreadyOver
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store_answers import Accepting, StaleOwner, UnknownTask
from taskgate.ports.task_store import NO_LIMITS, AcceptLimits


class ChildCall(msgspec.Struct, frozen=True):
    """A call of a script that becomes a task. `draft.parent` is the script."""

    number: int
    draft: Task
    approval: ApprovalRequest | None = None
    audit: AuditEntry | None = None
    limits: AcceptLimits = NO_LIMITS


class ScriptStep(msgspec.Struct, frozen=True):
    record: ScriptRecord
    snapshot: bytes
    """Opaque to the store. It is encrypted if `store.key` is set."""
    delivered: tuple[int, ...] = ()
    """The calls whose outcomes the script has received with this step."""


class Stepped(msgspec.Struct, frozen=True):
    """The step is durable. `accepted` has one answer for each new call, in order."""

    accepted: tuple[Accepting, ...]


Stepping = Stepped | AlreadyOver | UnknownTask | StaleOwner


class StoredScript(msgspec.Struct, frozen=True):
    record: ScriptRecord
    snapshot: bytes


class ScriptCall(msgspec.Struct, frozen=True):
    """One tool call of a script, with its task as it is now (without arguments and result)."""

    number: int
    line: int
    delivered_step: int | None
    """The step with which the script received the outcome; None until then."""
    task: Task


class ScriptStore(Protocol):
    async def step_script(self, task_id: str, step: ScriptStep, children: Sequence[ChildCall] = ()) -> Stepping:
        """Store a step. Refused if the script has ended or has another owner; then nothing is changed."""
        ...

    async def join_chain(self, task_id: str, earlier: Sequence[str]) -> str | None:
        """Make a script the newest of the chain of the scripts that it resumes (at least one, the first one first), unless another
        script, which is not one of these, is the newest. Return the newest; None if the first is no longer kept.
        """
        ...

    async def script(self, task_id: str) -> StoredScript | None:
        """The newest step of a script; None before the first."""
        ...

    async def script_calls(self, task_id: str, after: int = -1, limit: int = 1_000) -> tuple[ScriptCall, ...]:
        """The tool calls of a script in the order in which it made them, from the one after the number `after`."""
        ...

    async def asking_calls(self, task_id: str) -> tuple[str, ...]:
        """The ids of those calls of a script whose servers wait for an answer, in the order in which it made them."""
        ...
