"""Where tasks are kept. The gateway speaks to this; the adapters under `store/` keep the promise.

The promise: when an awaited write returns, it has been synced, and a power cut cannot take it back. Every write
carries the writer's ownership (an owner's name and its fence, a number that grows with every change of owner) and is
stamped by the store's own clock. A writer that has lost its ownership changes nothing and gets `StaleOwner`. The law
of which move is legal is `core.tasks.transition`; the store applies it inside its transaction, so a refusal is an
ordinary answer here. If the disk fails, a write raises a `GatewayFault` of type `store_unavailable` and nothing was
acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.approval import Approval
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted, TransitionEvent
from taskgate.ports.approval_store import NO_PENDING_LIMITS, ApprovalRequest, PendingLimits
from taskgate.ports.replicas import Replica
from taskgate.ports.shared_sessions import SessionStore
from taskgate.ports.store_answers import (
    Accepting,
    Advancing,
    Due,
    Intending,
    Ownership,
    Recovered,
    Swept,
    TaskFilter,
    TaskPage,
    TaskQuestion,
)
from taskgate.ports.topics import SeenRevisions, Wakeups


class AcceptLimits(msgspec.Struct, frozen=True):
    """Checked in the transaction that accepts. None means no limit."""

    open_tasks: int | None = None
    """Of one caller. Callers without an identity have it per conversation, and `ADDRESS_FACTOR` times as much per address."""
    open_tasks_of_tenant: int | None = None
    pending: PendingLimits = NO_PENDING_LIMITS


NO_LIMITS = AcceptLimits()
ADDRESS_FACTOR: Final = 10
"""How much more all callers without an identity at one address may have together than one conversation of theirs."""


FinalRecheck = Callable[[Task, Approval | None, int], TransitionEvent | None]
"""Called inside the intent's transaction with the stored task, its approval and the store's time. None means go; a
event that ends the task (refused, expired) is applied instead of the dispatch. Quick, and touches nothing outside."""


Decide = Callable[[Task, int], TransitionEvent | None]
"""What ends a task that was taken over, given the store's time; None if it is to be run, followed or left alone. Pure."""


class TaskStore(Protocol):
    """Tasks, their attempts, their questions and their idempotency keys."""

    @property
    def ownership(self) -> Ownership: ...

    def now_ms(self) -> int:
        """The store's clock, which stamps everything."""
        ...

    async def accept(
        self,
        draft: Task,
        *,
        sent: AlreadySent | None = None,
        approval: ApprovalRequest | None = None,
        key: str | None = None,
        limits: AcceptLimits = NO_LIMITS,
        audit: AuditEntry | None = None,
        joins: bool = False,
    ) -> Accepting:
        """Make a call durable. Times, owner, fence and state of the draft are set here.

        `sent` is for a promoted call that is already in flight (accept and intent in one write); `approval` for a call
        that people must agree to; at most one of the two. `key` is the caller's idempotency key, good for 24 h within
        its principal. `joins`: where an equal call of the same conversation waits for an approval, it is that one, unless this
        one has a key.
        """
        ...

    async def intend(
        self,
        task_id: str,
        *,
        byte_hash: str,
        upstream: str,
        message: str | None = None,
        recheck: FinalRecheck,
        audit: AuditEntry | None = None,
    ) -> Intending:
        """Write the intent to send. Only `Intended` allows the first byte to go out.

        In the same transaction: the fence is ours, the task is not over, the approval (if there is one) is good and is
        spent by this, and `look` agrees.
        """
        ...

    async def advance(
        self,
        task_id: str,
        event: TransitionEvent,
        *,
        questions: Sequence[TaskQuestion] = (),
        answers: Mapping[str, bytes] | None = None,
        audit: AuditEntry | None = None,
    ) -> Advancing:
        """Apply one event: an upstream's task id, questions, a result, an error, a cancel, and so on.

        A event that ends the task withdraws its open approval in the same transaction. Not for `Dispatched`: that
        is `intend`.
        """
        ...

    def note(self, task_id: str, noted: Noted) -> None:
        """Remember progress or a status text. Readers see it at once; it reaches the disk with the next commit, or
        not at all.
        """
        ...

    async def cancel_delivered(self, task_id: str) -> None:
        """The upstream has been told about the cancel; the next owner need not do it again."""
        ...

    async def get(self, task_id: str, *, also_gone: bool = False) -> Task | None:
        """The task, or None if it is unknown or no longer kept; with `also_gone` one that is not kept is given as long as
        no sweep has taken it. The outcome's bytes are not loaded: see `result_bytes`.
        """
        ...

    async def result_bytes(self, task_id: str) -> bytes | None:
        """The exact bytes of a finished task's result or error object."""
        ...

    async def page(
        self,
        caller: str | None,
        *,
        after: str | None = None,
        limit: int = 50,
        server: str | None = None,
        states: frozenset[TaskState] | None = None,
        also_gone: bool = False,
        arguments_up_to: int = 0,
    ) -> TaskPage:
        """One caller's tasks, newest first; None is for operators and shows everybody's.

        `also_gone` adds those whose results are no longer kept. Arguments come along if they have at most so many
        bytes; longer ones are left empty.
        """
        ...

    async def find_tasks(self, wanted: TaskFilter, *, after: str | None = None, limit: int = 50) -> TaskPage:
        """Tasks of everybody that fit, newest first, for people who look for some. Reads row by row: not for calls."""
        ...

    async def ended_badly(self, wanted: TaskFilter, since_ms: int, limit: int) -> tuple[Task, ...]:
        """Tasks that ended without a result since then, the last to end first; of `wanted` only whose they are matters."""
        ...

    async def task_of_key(self, principal: str, key: str) -> str | None:
        """The id of the task that an idempotency key stands for, while the key is good."""
        ...

    async def open_count(self, caller: str | None = None) -> int:
        """Open tasks of one caller, or of all."""
        ...

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        """Open questions of a task in the order they were asked; with `answered`, the answered ones instead."""
        ...

    async def due(self, limit: int = 500) -> Due: ...

    async def sweep(self, portions: int = 1) -> Swept:
        """Forget so many portions of what is past its time, each a short write; `more` says whether to ask again soon."""
        ...

    async def sweep_leftovers(self) -> int:
        """Go through what is looked for by no index: event streams without events, and long results that no task names, of
        which the number is returned. For now and then."""
        ...

    async def claim(self) -> tuple[str, ...]:
        """Take over open tasks of owners that are dead, under our fence: the ids of those that now need a decision by
        `recovery`. Bounded per call; call again while it still finds some.
        """
        ...

    async def recover(self, decide: Decide, after: str = "", limit: int = 250) -> Recovered:
        """The next tasks that `claimed` would give. Those that `decide` has an end for are ended, all in one transaction."""
        ...

    async def recover_these(self, decide: Decide, ids: Sequence[str]) -> Recovered:
        """The same for these tasks, as far as they are ours."""
        ...

    async def take(self, task_id: str) -> Task | None:
        """Make a task of another living owner ours, of which nothing was sent yet; None if it cannot be had."""
        ...

    async def claimed(self, after: str = "", limit: int = 500) -> tuple[Task, ...]:
        """Tasks of ours that are open, or whose upstream must still be told about a cancel, in order of id."""
        ...

    async def keep(self, name: str, value: bytes) -> bytes:
        """Keep a small secret of this installation; whoever keeps it first wins, and everybody gets that value."""
        ...

    async def close(self) -> None: ...

    @property
    def wakeups(self) -> Wakeups | None:
        """What other gateways on this store announce; None for a store that one gateway has to itself."""
        ...

    @property
    def revisions(self) -> SeenRevisions | None:
        """The revisions of what gateways keep in memory, as last confirmed; None for a store that one gateway has to itself."""
        ...

    async def read_revisions(self) -> Mapping[str, int]:
        """The same, read now."""
        ...

    def now_known(self, topic: str, revision: int) -> None:
        """The copy of this topic in memory was read at this revision. An intent with an older copy is refused."""
        ...

    @property
    def lease_ms(self) -> int:
        """A gateway that was not seen for so long is dead; 0 for a store that one gateway has to itself."""
        ...

    def reconfigured(self, digest: str) -> None:
        """Our settings have changed: the others see it with the next renewal of our lease."""
        ...

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The gateways that share this store, ourselves among them; empty for a store that one gateway has to itself."""
        ...

    @property
    def sessions(self) -> SessionStore | None:
        """Sessions that other gateways can find and go on with; None for a store that one gateway has to itself."""
        ...

    @property
    def lost(self) -> str | None:
        """Why this process can never write to the store again, so that it must end; None while it can."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why the store cannot be written to just now, for readiness checks; None if all is well."""
        ...
