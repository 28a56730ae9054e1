"""The limits on open tasks, checked in the transaction that accepts a task."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core.governance.held_call import NO_PENDING_LIMITS, ApprovalRequest, PendingLimits
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.caller import ANONYMOUS_LIMIT
from taskgate.core.identity.identity import tenant_of
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import LimitHolder, TooManyOpen
from taskgate.store.operations import approvals
from taskgate.store.transaction import Transaction

ADDRESS_FACTOR: Final = 10
"""All callers without an identity at one address may have this many times the limit of one conversation."""
_OPEN_TASKS: Final = "open_tasks_per_caller"
_CONVERSATION: Final = "conversation "
"""Prefix of the keys by which a transaction counts open tasks of conversations."""


class AcceptLimits(msgspec.Struct, frozen=True):
    """Checked in the transaction that accepts. None means no limit."""

    open_tasks: int | None = None
    """Per caller. For callers without an identity: per conversation, and `ADDRESS_FACTOR` times as many per address."""
    open_tasks_of_tenant: int | None = None
    pending: PendingLimits = NO_PENDING_LIMITS


NO_LIMITS: Final = AcceptLimits()


def over_limit(
    tx: Transaction, draft: Task, limits: AcceptLimits, approval: ApprovalRequest | None
) -> TooManyOpen | None:
    limited_as = draft.limited_as or draft.caller
    if (refused := _over_limit_of_caller(tx, limited_as, draft.caller, limits.open_tasks)) is not None:
        return refused
    tenant = tenant_of(limited_as)
    if tenant and limits.open_tasks_of_tenant is not None:
        found = tx.run("count_open_of_tenant", what="tenant task", tenant=tenant).fetchone()[0]
        if found >= limits.open_tasks_of_tenant:
            setting, what = "open_tasks_per_tenant", "open tasks of all callers of your tenant"
            return TooManyOpen(what, limits.open_tasks_of_tenant, setting, LimitHolder.TENANT)
    return None if approval is None else approvals.over_limit(tx, approval.counted_as, limits.pending)


def _over_limit_of_caller(tx: Transaction, limited_as: str, caller: str, limit: int | None) -> TooManyOpen | None:
    """Check the limit of one caller.

    Callers without an identity are limited per conversation, where it is known, and together per address: opening sessions is
    free, so a limit per session alone could be evaded.
    """
    if not limited_as.startswith(ANONYMOUS_LIMIT):
        if _reached(tx, limited_as, limit, "count_open_of_caller", limited_as=limited_as):
            return TooManyOpen("open tasks", limit or 0, _OPEN_TASKS)
        return None
    if not caller.startswith(NO_CONVERSATION):
        key = f"{_CONVERSATION}{limited_as} {caller}"
        if _reached(tx, key, limit, "count_open_of_conversation", caller=caller, limited_as=limited_as, maximum=limit):
            return TooManyOpen("open tasks in this session", limit or 0, _OPEN_TASKS, LimitHolder.CONVERSATION)
    of_address = None if limit is None else limit * ADDRESS_FACTOR
    if _reached(tx, limited_as, of_address, "count_open_of_caller", limited_as=limited_as):
        what = "open tasks of all callers without a token at your address"
        return TooManyOpen(what, of_address or 0, _OPEN_TASKS, LimitHolder.ADDRESS)
    return None


def _reached(tx: Transaction, key: str, limit: int | None, count: str, /, **values: Any) -> bool:
    """Return whether the limit is reached; otherwise count one more."""
    if limit is None:
        if key in tx.open_counts:
            tx.open_counts[key] += 1
        return False
    # No other writer adds tasks before this commit, so a count made earlier in this transaction is an upper bound.
    found = tx.open_counts.get(key)
    if found is None or found >= limit:
        found = tx.run(count, **values).fetchone()[0]
    if found >= limit:
        return True
    tx.open_counts[key] = found + 1
    return False
