"""Putting on record who gets what: every effective set of servers once, in the log, the metrics and the audit trail."""

from __future__ import annotations

import difflib
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.audit import AuditEntry
from taskgate.core.scoping.subset import Reason, Subset
from taskgate.gateway.plan.plan import Plan
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

MOST_TOLD: Final = 100
MOST_SCOPES_TOLD: Final = 1000


class ScopeRecord:
    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._scopes_told = 0

    def start_over(self) -> None:
        """After a reload every set is worth telling again."""
        self._scopes_told = 0

    def composed(self, subset: Subset) -> None:
        """Someone's set of servers was worked out: once for each scope, wish and revision."""
        for line in subset.log:
            self._metrics.denied_reason.add(line.subject, line.reason.value)
            if line.reason not in (Reason.NOT_REQUESTED, Reason.NOT_SELECTED):
                self._metrics.injection.add(line.subject, "denied")
        self._scopes_told += 1
        if self._scopes_told > MOST_SCOPES_TOLD:
            # Callers can make up wishes for ever; the record of them ends here until the next reload.
            return
        facts = facts_of(subset)
        reason = wire.encode({"servers": facts["servers"], "excluded": facts["excluded"]}).decode("utf-8")
        self._store.record(
            AuditEntry(0, "scope", scope=subset.scope, kind="scope", policy_revision=subset.revision, reason=reason)
        )
        if subset.servers:
            log.info("scope in effect", **facts)
        else:
            log.warning("scope is empty: its callers see no tools", **facts)


def scope_hint(plan: Plan, asked: str) -> str:
    """For operators: what is wrong with the name of a scope."""
    if asked in plan.disabled_scopes:
        return f"The scope {asked!r} is switched off."
    near = difflib.get_close_matches(asked, plan.scopes, n=1)
    told = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(plan.scopes)) or 'none'}."
    return f"There is no scope {asked[:80]!r} for this token. {told}"


def facts_of(subset: Subset) -> dict[str, Any]:
    """The effective set, as log lines and the audit tell it."""
    facts: dict[str, Any] = {"scope": subset.scope, "revision": subset.revision, "servers": list(subset.servers)}
    facts["excluded"] = {line.subject: line.reason.value for line in subset.log[:MOST_TOLD]}
    if len(subset.log) > MOST_TOLD:
        facts["excluded_in_all"] = len(subset.log)
    return facts
