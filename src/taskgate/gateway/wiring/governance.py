"""Create the approvals and the gate."""

from __future__ import annotations

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.pre_send_recheck import PreSendRecheck
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import GovernanceGroup, TaskGroup


def wire_governance(
    base: Foundation,
    running: TaskGroup,
    grants: StandingGrants,
    expiries: ApprovalExpiries,
    recheck: PreSendRecheck,
    *,
    denials: Denials,
    catalogs: Catalogs,
) -> GovernanceGroup:
    approvals = Approvals(
        running.records,
        running.runs,
        running.presence,
        plan=base.plan,
        grants=grants,
        expiries=expiries,
        address=base.address,
        catalogs=catalogs,
        metrics=base.metrics,
        events=base.events,
    )
    return GovernanceGroup(
        approvals,
        AskCaller(approvals, running.followers, base.store, base.plan, base.events),
        CallGate(
            store=base.store,
            plan=base.plan,
            approvals=approvals,
            pre_send=recheck,
            metrics=base.metrics,
            denials=denials,
            journal=base.journal,
        ),
        denials,
    )
