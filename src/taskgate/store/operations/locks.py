"""What an operation is about to read and change, for databases that several gateways write to at once.

An adapter whose database has one writer need not look at it. The others lock what the operations of one transaction name, all at
once and in one order, before the first of them runs: then what an operation reads stays true until its commit, and two
transactions never wait for each other in a circle.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Locks(NamedTuple):
    """A task stands for its approval, its questions and its caller's events too; an approval for its task."""

    tasks: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    """Whose events are appended to."""
    limits: tuple[str, ...] = ()
    """Whose open tasks and approvals are counted."""
    names: tuple[str, ...] = ()
    """Anything else that is known by a name: idempotency keys, grants, secrets."""


NO_LOCKS: Final = Locks()
