"""The risk of the tools of a server, as decisions use it."""

from __future__ import annotations

from functools import partial

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.governance.pipeline import RiskOf
from taskgate.core.risk import Risk, highest
from taskgate.gateway.catalog.offer import Offer
from taskgate.gateway.catalog.stated_risks import StatedRisks
from taskgate.gateway.plan import Plan


def risks_of(plan: Plan, server: str, offer: Offer | None, stated: StatedRisks) -> RiskOf:
    """Return a function from the name of a tool of the server to its risk. What a person stated about the present definition counts
    first, then the configuration, then what the server declares. An unlisted name has at least the risk of the tools that it
    looks like, because the server may accept it as a spelling of one.
    """
    return partial(_risk, plan, server, offer, stated)


def _risk(plan: Plan, server: str, offer: Offer | None, stated: StatedRisks, name: str) -> Risk:
    if offer is None:
        return plan.risk_of(server, name, Risk.UNDECLARED)
    by_person = stated.get((server, name))
    if by_person is not None and any(
        entry.name == name and entry.digest == by_person.digest for entry in offer.entries.get(EntryKind.TOOL, ())
    ):
        return by_person.risk
    declared = offer.declared_risk(name)
    if declared is not None:
        return plan.risk_of(server, name, declared)
    own = plan.risk_of(server, name, Risk.UNDECLARED)
    return highest((own, *(_risk(plan, server, offer, stated, other) for other in offer.looking_like(name))))
