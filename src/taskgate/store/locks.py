"""What an operation reads and changes, declared before it runs.

An adapter with a single writer ignores this. PostgreSQL, where several gateways write, locks everything that the operations of one
transaction declared, in a global order, before the first one runs. What an operation reads therefore stays valid until its commit,
and two transactions cannot deadlock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from taskgate.core.identity.identity import tenant_of


class Locks(NamedTuple):
    """What an operation reads or changes. A task covers its approval, its questions and its caller's events; an approval covers its
    task."""

    tasks: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    """Callers to whose event streams the operation appends."""
    limits: tuple[str, ...] = ()
    """Keys by which open tasks and approvals are counted."""
    names: tuple[str, ...] = ()
    """Other named resources: idempotency keys, grants, secrets."""
    reads: tuple[str, ...] = ()
    """The subset of `tasks` that exists already and is read, so that an adapter can prefetch it."""


NO_LOCKS: Final = Locks()


def tenants_of(callers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys by which open tasks and approvals of these callers' tenants are counted."""
    return tuple(f"tenant {tenant}" for tenant in dict.fromkeys(map(tenant_of, callers)) if tenant)
