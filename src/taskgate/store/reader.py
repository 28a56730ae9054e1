"""What a query reads with: the statements of one connection, and what decides about rows."""

from __future__ import annotations

from collections.abc import Callable

from taskgate.ports.store_answers import Ownership
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState
from taskgate.store.transaction import Statements


class Reader:
    """Of one connection."""

    __slots__ = ("_clock", "is_shared", "ownership", "run", "sealing", "state")

    def __init__(
        self,
        run: Statements,
        state: StoreState,
        sealing: Sealing,
        *,
        clock: Callable[[], int],
        ownership: Ownership,
        is_shared: bool,
    ) -> None:
        self.run = run
        self.state = state
        self.sealing = sealing
        self._clock = clock
        self.ownership = ownership
        self.is_shared = is_shared
        """Whether other gateways write to the same database."""

    @classmethod
    def alone(cls, run: Statements) -> Reader:
        """Return a reader of a database that is read without a gateway."""
        return cls(run, StoreState(), Sealing(()), clock=lambda: 0, ownership=Ownership("", 0), is_shared=False)

    @property
    def now_ms(self) -> int:
        """The time of the store's clock."""
        return self._clock()

    @property
    def chain(self) -> str:
        """The name of this gateway's audit chain, where each start has its own; empty where there is one chain."""
        return self.ownership.owner if self.is_shared else ""
