"""Governance settings besides the gates: policies, people, and redaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from taskgate.core.catalog.pin import PinMode
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.redaction.fields import NOTHING_HIDDEN, Redaction
from taskgate.ports.policy_engine import PolicyEngine


class Elicits(StrEnum):
    """How the caller itself is shown an approval, where its workflow says so."""

    FORM = "form"
    URL = "url"


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """`governance.record`: which part of the calls is kept, for how long, and what is hidden in them."""

    sample: float
    keep_ms: int
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token of the configuration, for whoever looks after them."""

    id: str
    principal: str
    roles: frozenset[str]
    sha256: str = field(repr=False)
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Governing:
    """What governance needs besides the gates: the policies, the people, and what is hidden from them."""

    policy: PolicyEngine | None = None
    approvers: Mapping[str, Approver] = field(default_factory=dict)
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The roles of every principal with a token, for policies."""
    redactions: Mapping[str, Redaction] = field(default_factory=dict)
    elicits: Mapping[str, Elicits] = field(default_factory=dict)
    """Workflows whose question may be shown to the caller itself."""
    grants: bool = True
    longest_grant_ms: int = 3_600_000
    pins: PinMode = PinMode.WARN
    pin_new_tools: bool = False
    """`pins: strict`: a tool never seen before is quarantined too."""
    public_url: str | None = None
    tokens: tuple[KnownToken, ...] = ()
    people: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Each name of somebody who is known by several, with all of them."""
    record: RecordSettings | None = None
    operators_own: frozenset[str] = frozenset()
    """Principals whose person is the operator: those of a local gateway without identities."""

    def owns_account_of(self, who: Approver, principal: str) -> bool:
        """Whether an account that is connected for this principal is this person's own."""
        return self.person(who).owns_account_of(principal, self.operators_own)

    def login_of(self, principal: str) -> str | None:
        """As whom a person logs in who is this principal. Anonymous callers of a gateway with identities have no login."""
        if principal in self.operators_own:
            return OPERATOR
        return principal if principal != ANONYMOUS else None

    def person(self, who: Approver) -> Approver:
        """Somebody with every name they are known by, so that they count once and never decide on their own calls."""
        identities = self.people.get(who.id)
        return who if identities is None else replace(who, identities=identities)

    def redaction(self, workflow: str) -> Redaction:
        return self.redactions.get(workflow, NOTHING_HIDDEN)
