"""The store of a gateway: runs operations and queries (`store.operation`), which are values that use cases create.

`store/operations/` has one class for each. When `do` returns, the change has been synced and survives a power failure. If the disk
or the database fails, it raises `GatewayFault` of the type `store_unavailable`, and nothing was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.ports.topics import SeenRevisions, Wakeups
from taskgate.store.operation import Operation, Query
from taskgate.store.state import StoreState

T = TypeVar("T")


class Store(Protocol):
    """One open database."""

    async def do(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction, and return its answer when the change is durable. Raises GatewayFault."""
        ...

    async def ask(self, query: Query[T]) -> T:
        """Return what a query reads. Raises GatewayFault."""
        ...

    def defer(self, operation: Operation[None], settled: Callable[[bool], None] | None = None) -> None:
        """Run an operation with the next commit, without waiting for it; it may be lost in a crash. Raises GatewayFault if too many
        are queued.

        `settled` is called with True when the change is durable, and with False if it was refused. While the database cannot be
        written to, the operation is tried again.
        """
        ...

    def now_ms(self) -> int:
        """Return the time of the store's clock, which stamps everything."""
        ...

    async def close(self) -> None: ...

    @property
    def state(self) -> StoreState:
        """What the store keeps in memory."""
        ...

    @property
    def ownership(self) -> Ownership: ...

    @property
    def lost(self) -> str | None:
        """Why this process can never write to the store again and must end; None while it can."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason why the store cannot be written to now, for readiness checks; None if it can."""
        ...

    @property
    def audit_chain(self) -> str:
        """The name of this gateway's audit chain, where each start has its own; empty where there is one chain."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """Return the number and hash of the last durable row; 0 and the beginning of the chain if there is none."""
        ...

    async def drop_old_days(self, keep_ms: int) -> None:
        """Drop the days of history that are too old as a whole, where history is divided into days."""
        ...

    async def remove_unused_results(self) -> int:
        """Remove long results that no task refers to and that are too old to belong to a write in progress. Return their number."""
        ...

    @property
    def shared(self) -> SharedStore | None:
        """This store, if several gateways share it; None for a store that one gateway has to itself."""
        ...

    @property
    def wakeups(self) -> Wakeups | None:
        """Announcements of other gateways on this store; None for a store that one gateway has to itself."""
        ...

    @property
    def revisions(self) -> SeenRevisions | None:
        """The revisions of cached records, as last read; None for a store that one gateway has to itself."""
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


class SharedStore(Store, Protocol):
    """A store that several gateways share, each with a lease that it renews."""

    @property
    def is_fresh(self) -> bool:
        """Whether the lease of this gateway is certainly valid, so that no other gateway can adopt its sessions."""
        ...

    @property
    def unbroken_since(self) -> float:
        """Since when the lease was renewed without a gap. It changes if the lease may have expired in between."""
        ...

    @property
    def may_declare_dead(self) -> bool:
        """Whether the leases of others have been read long enough to know which of them are alive."""
        ...

    def is_alive(self, owner: str) -> bool:
        """Return whether another gateway's lease is valid. A gateway whose lease is not known counts as alive."""
        ...

    def address_of(self, owner: str) -> str:
        """Return the internal address of a gateway that has a lease; empty if it has none."""
        ...
