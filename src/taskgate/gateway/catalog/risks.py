"""The risk of the tools of a server, as decisions use it."""

from __future__ import annotations

from functools import partial

from taskgate.core.governance.pipeline import RiskOf
from taskgate.core.risk import Risk
from taskgate.gateway.catalog.offer import Offer
from taskgate.gateway.plan import Plan


def risks_of(plan: Plan, server: str, offer: Offer | None) -> RiskOf:
    """Return a function from the name of a tool of the server to its risk."""
    return partial(_risk, plan, server, offer)


def _risk(plan: Plan, server: str, offer: Offer | None, name: str) -> Risk:
    return plan.risk_of(server, name, Risk.UNDECLARED if offer is None else offer.declared_risk(name))
