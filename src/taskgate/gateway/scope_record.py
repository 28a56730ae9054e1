"""Record each effective set of servers and tools once: in the log, the metrics and the audit log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.scoping.subset import Reason, Subset
from taskgate.core.text.similar_names import similar_names
from taskgate.gateway.plan import Plan
from taskgate.ports.store import Store
from taskgate.store.operations.audit import RecordAudit
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

MAX_SETS_RECORDED: Final = 100
MAX_TOOLS_RECORDED: Final = 1000
MAX_SCOPES_RECORDED: Final = 1000


class ScopeRecord:
    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._scopes_recorded = 0
        self._tools_recorded: set[str] = set()

    def start_over(self) -> None:
        """Record every set again after a reload."""
        self._scopes_recorded = 0
        self._tools_recorded.clear()

    def composed(self, subset: Subset) -> None:
        """Record a set of servers, once per scope, session request and revision."""
        for line in subset.log:
            self._metrics.denied_reason.add(line.subject, line.reason.value)
        self._scopes_recorded += 1
        if self._scopes_recorded > MAX_SCOPES_RECORDED:
            # Callers can send any number of different requests; no more are recorded until the next reload.
            return
        facts = facts_of(subset)
        reason = wire.encode({"servers": facts["servers"], "excluded": facts["excluded"]}).decode("utf-8")
        self._store.defer(
            RecordAudit(
                AuditEntry(0, "scope", scope=subset.scope, kind="scope", policy_revision=subset.revision, reason=reason)
            )
        )
        if subset.servers:
            log.info("scope in effect", **facts)
        else:
            log.warning("scope is empty: its callers see no tools", **facts)

    def shown(self, subset: Subset, tools: Mapping[str, list[str]], excluded: Mapping[str, str]) -> None:
        """Record the tools of a scope, computed from the current lists, in one record with a status for each server.

        `tools` has each server that could be listed; `excluded` has the reason for each excluded tool.
        """
        for server in subset.servers:
            self._metrics.injection.add(server, "success" if server in tools else "failed")
        for line in subset.log:
            if line.reason not in (Reason.NOT_REQUESTED, Reason.NOT_SELECTED):
                self._metrics.injection.add(line.subject, "denied")
        body = wire.encode({"tools": _first(tools), "excluded": dict(list(excluded.items())[:MAX_TOOLS_RECORDED])})
        whole = wire.encode([subset.scope, subset.revision, tools, excluded])
        digest = hashlib.sha256(whole).hexdigest()
        if digest in self._tools_recorded or len(self._tools_recorded) >= MAX_SCOPES_RECORDED:
            return
        self._tools_recorded.add(digest)
        self._store.defer(
            RecordAudit(
                AuditEntry(
                    0,
                    "scope_tools",
                    scope=subset.scope,
                    kind="scope",
                    policy_revision=subset.revision,
                    arguments_digest=f"sha256:{digest}",
                    decision=f"{sum(map(len, tools.values()))} tools, {len(excluded)} excluded",
                    reason=body.decode("utf-8"),
                )
            )
        )


def _first(tools: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return as many names as a row may hold, with the digest of all of them."""
    left, found = MAX_TOOLS_RECORDED, {}
    for server, names in tools.items():
        found[server] = names[:left]
        left -= len(found[server])
    return found


def scope_hint(plan: Plan, asked: str) -> str:
    """Explain to an operator why a scope name is not valid."""
    if asked in plan.disabled_scopes:
        return f"The scope {asked!r} is switched off."
    near = similar_names(asked, plan.scopes)
    suggestion = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(plan.scopes)) or 'none'}."
    return f"There is no scope {asked[:80]!r} for this token. {suggestion}"


def facts_of(subset: Subset) -> dict[str, Any]:
    """Return the effective set as fields for the log and the audit."""
    facts: dict[str, Any] = {"scope": subset.scope, "revision": subset.revision, "servers": list(subset.servers)}
    facts["excluded"] = {line.subject: line.reason.value for line in subset.log[:MAX_SETS_RECORDED]}
    if len(subset.log) > MAX_SETS_RECORDED:
        facts["excluded_in_all"] = len(subset.log)
    return facts
