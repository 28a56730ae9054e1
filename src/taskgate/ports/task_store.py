"""The port through which the gateway stores tasks; the adapters are in `store/`.

When an awaited write returns, it has been synced and survives a power failure. Every write carries the writer's ownership (its name
and its fence, a number that grows with every change of owner) and is stamped by the store's own clock. A writer that has lost its
ownership changes nothing and gets `StaleOwner`. `core.tasks.transition` defines which transitions are legal; the store applies it
inside its transaction, so a refusal is an ordinary result here. If the disk fails, a write raises `GatewayFault` with the type
`store_unavailable`, and nothing was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.approval import Approval
from taskgate.core.scripts.record import ReceivedOutcomes
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.core.tasks.transition import Noted, RoundAnswered, TransitionEvent
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
    SweepResult,
    TaskFilter,
    TaskPage,
    TaskQuestion,
)
from taskgate.ports.topics import SeenRevisions, Wakeups


class AcceptLimits(msgspec.Struct, frozen=True):
    """Checked in the transaction that accepts. None means no limit."""

    open_tasks: int | None = None
    """Per caller. For callers without an identity: per conversation, and `ADDRESS_FACTOR` times as many per address."""
    open_tasks_of_tenant: int | None = None
    pending: PendingLimits = NO_PENDING_LIMITS


NO_LIMITS = AcceptLimits()
ADDRESS_FACTOR: Final = 10
"""All callers without an identity at one address may have this many times the limit of one conversation."""


FinalRecheck = Callable[[Task, Approval | None, int], TransitionEvent | None]
"""Called inside the intent's transaction with the stored task, its approval and the store's time. None allows the dispatch; an
event that ends the task (refused, expired) is applied instead of it. Must be quick and free of side effects."""


Decide = Callable[[Task, int], TransitionEvent | None]
"""Returns the event that ends a task that was taken over, given the store's time; None if it continues. A pure function."""


class TaskStore(Protocol):
    """Tasks, their attempts, their questions and their idempotency keys."""

    @property
    def ownership(self) -> Ownership: ...

    def now_ms(self) -> int:
        """Return the time of the store's clock, which stamps everything."""
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

        `sent` is for a promoted call that is already in flight (accept and intent in one write). It is kept if its caller stops
        waiting for the write, and a further attempt with the same id returns the task as `SameCall`. `approval` is for a call that
        needs an approval; at most one of the two. `key` is the caller's idempotency key, valid for 24 h within its principal.
        `joins`: if an equal call of the same conversation waits for an approval and this one has no key, return that task instead.
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
        answered: RoundAnswered | None = None,
    ) -> Intending:
        """Write the intent to send, and the end of the round before if it is given. Only `Intended` allows the first byte to go
        out.

        Checked in the same transaction: the fence is valid, the task has not ended, the approval (if there is one) is valid and is
        spent by this, and `recheck` allows it.
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
        received: ReceivedOutcomes | None = None,
    ) -> Advancing:
        """Apply one event: an upstream's task id, questions, a result, an error, a cancellation, and so on.

        An event that ends the task withdraws its open approval in the same transaction. `Dispatched` is written by `intend`.
        `received`: with the end of a script, the calls whose outcomes it received after its newest stored step.
        """
        ...

    def note(self, task_id: str, noted: Noted) -> None:
        """Store progress or a status text. Readers see it at once; it is written with the next commit, or lost in a crash."""
        ...

    async def cancel_delivered(self, task_id: str) -> None:
        """Record that the upstream was notified of the cancellation; the next owner need not repeat it."""
        ...

    async def get(self, task_id: str, *, include_expired: bool = False) -> Task | None:
        """Return the task, or None if it is unknown or expired; with `include_expired`, an expired task that is not deleted yet is
        returned too. The bytes of its result are read by `result_bytes`.
        """
        ...

    async def result_bytes(self, task_id: str) -> bytes | None:
        """Return the exact bytes of a finished task's result or error object."""
        ...

    async def page(
        self,
        caller: str | None,
        *,
        after: str | None = None,
        limit: int = 50,
        server: str | None = None,
        states: frozenset[TaskState] | None = None,
        include_expired: bool = False,
        arguments_up_to: int = 0,
    ) -> TaskPage:
        """Return one caller's tasks, newest first; None, for operators, returns those of all callers.

        `include_expired` includes those whose results have expired. Arguments of more than `arguments_up_to` bytes are left empty.
        """
        ...

    async def find_tasks(self, filters: TaskFilter, *, after: str | None = None, limit: int = 50) -> TaskPage:
        """Return matching tasks of all callers, newest first. Scans rows: for searches by people, not for calls."""
        ...

    async def ended_badly(self, filters: TaskFilter, since_ms: int, limit: int) -> tuple[Task, ...]:
        """Return tasks that ended without a result since then, latest first. Only principal and tenant of `filters` are used."""
        ...

    async def task_of_key(self, principal: str, key: str) -> str | None:
        """Return the id of the task with this idempotency key, while the key is valid."""
        ...

    async def open_count(self, caller: str | None = None) -> int:
        """Return the number of open tasks of one caller, or of all."""
        ...

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        """Return the open questions of a task in order; with `answered`, the answered ones instead."""
        ...

    async def attempts(self, task_id: str, limit: int) -> tuple[Attempt, ...]:
        """Return the last attempts to send the call of a task, oldest first."""
        ...

    async def due(self, limit: int = 500) -> Due: ...

    async def sweep(self, portions: int = 1) -> SweepResult:
        """Delete up to that many portions of what is no longer retained, each in a short write."""
        ...

    @property
    def deletion_cpu_s(self) -> float:
        """The CPU time that deleting expired records has taken since the start."""
        ...

    async def sweep_leftovers(self) -> int:
        """Delete what is found only by a scan: event streams without events, and long results that no task refers to; return the
        number of the latter. Called rarely."""
        ...

    async def claim(self) -> tuple[str, ...]:
        """Take over open tasks of dead owners with this gateway's fence; return the ids of those that need a decision by
        `recovery`. Limited per call; call again while it returns some.
        """
        ...

    async def recover(self, decide: Decide, after: str = "", limit: int = 250) -> Recovered:
        """Process the next tasks of this gateway: those for which `decide` returns an event are ended, all in one transaction."""
        ...

    async def recover_these(self, decide: Decide, ids: Sequence[str]) -> Recovered:
        """The same for these tasks, as far as this gateway owns them."""
        ...

    async def take(self, task_id: str) -> Task | None:
        """Take ownership of another gateway's task of which nothing was sent yet; return None if that is not possible."""
        ...

    async def hand_over(self, task_id: str, owner: str) -> bool:
        """Make another gateway the owner of an open task of this one, and announce it. False if that gateway was declared dead, or
        the task is not open or not ours.
        """
        ...

    async def claimed(self, after: str = "", limit: int = 500) -> tuple[Task, ...]:
        """Return this gateway's tasks that are open, or whose upstream must still be notified of a cancellation, in order of id."""
        ...

    async def keep(self, name: str, value: bytes) -> bytes:
        """Store a small secret of this installation unless there is one; return the stored value. The first gateway wins."""
        ...

    async def close(self) -> None: ...

    @property
    def wakeups(self) -> Wakeups | None:
        """Announcements of other gateways on this store; None for a store that one gateway has to itself."""
        ...

    @property
    def revisions(self) -> SeenRevisions | None:
        """The revisions of cached records, as last read; None for a store that one gateway has to itself."""
        ...

    async def read_revisions(self) -> Mapping[str, int]:
        """Read the current revisions."""
        ...

    def now_known(self, topic: str, revision: int) -> None:
        """Record the revision at which the cached copy of this topic was read. An intent with an outdated copy is refused."""
        ...

    @property
    def lease_ms(self) -> int:
        """A gateway whose lease is older than this is dead; 0 for a store that one gateway has to itself."""
        ...

    def reconfigured(self, digest: str, interpreter: str) -> None:
        """Publish the digest of new settings, and the interpreter of scripts if they use one, to the other gateways, with the next
        renewal of the lease."""
        ...

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The gateways that share this store, including this one; empty for a store that one gateway has to itself."""
        ...

    @property
    def sessions(self) -> SessionStore | None:
        """Sessions that other gateways can find and continue; None for a store that one gateway has to itself."""
        ...

    @property
    def lost(self) -> str | None:
        """Why this process can never write to the store again and must end; None while it can."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason why the store cannot be written to now, for readiness checks; None if it can."""
        ...
