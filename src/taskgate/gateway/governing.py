"""Governance settings besides the gates: policies, people, and redaction."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from taskgate.core.catalog.pin import PinMode
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.workflow import JOINT
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.redaction.fields import NOTHING_HIDDEN, Redaction, together
from taskgate.ports.policy_engine import PolicyEngine
from taskgate.shown_fields import repr_without


class Elicits(StrEnum):
    """How an approval request is shown to the caller itself, if the workflow allows that."""

    FORM = "form"
    URL = "url"


class RecordSettings(msgspec.Struct, frozen=True):
    """`governance.record`: sample rate, retention and redaction of recorded calls."""

    sample: float
    keep_ms: int
    redaction: Redaction


class KnownToken(msgspec.Struct, frozen=True):
    """A configured token, for the operator's token commands."""

    id: str
    principal: str
    roles: frozenset[str]
    sha256: str
    expires_ms: int | None = None

    __repr__ = repr_without("sha256")


class Governing(msgspec.Struct, frozen=True):
    policy: PolicyEngine | None = None
    approvers: Mapping[str, Approver] = msgspec.field(default_factory=dict)
    roles: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """The roles of every principal with a token, for policies."""
    redactions: Mapping[str, Redaction] = msgspec.field(default_factory=dict)
    elicits: Mapping[str, Elicits] = msgspec.field(default_factory=dict)
    """Workflows whose approval requests may be shown to the caller itself."""
    grants: bool = True
    longest_grant_ms: int = 3_600_000
    pins: PinMode = PinMode.WARN
    pin_new_tools: bool = False
    """`pins: strict`: a tool never seen before is quarantined too."""
    public_url: str | None = None
    tokens: tuple[KnownToken, ...] = ()
    token_ids: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Their ids by principal."""
    people: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """For each principal of a person with several: all of them."""
    record: RecordSettings | None = None
    operators_own: frozenset[str] = frozenset()
    """Principals that are the operator: those of a local gateway without identities."""
    principals: frozenset[str] = frozenset()
    """Every principal to whom the configuration gives a token or a certificate."""

    def owns_account_of(self, approver: Approver, principal: str) -> bool:
        """Return whether an account connected for this principal belongs to this person."""
        return self.person(approver).owns_account_of(principal, self.operators_own)

    def login_of(self, principal: str) -> str | None:
        """Return the login name for this principal. Anonymous callers of a gateway with identities have none."""
        if principal in self.operators_own:
            return OPERATOR
        return principal if principal != ANONYMOUS else None

    def person(self, approver: Approver) -> Approver:
        """Return the approver with all their principals, so that they count once and cannot approve their own calls."""
        identities = self.people.get(approver.id)
        return approver if identities is None else replace(approver, identities=identities)

    def token_of(self, principal: str) -> str:
        """Return the id of the configured token of a principal; empty if it has none."""
        return self.token_ids.get(principal, "")

    def redaction(self, workflow: str) -> Redaction:
        found = [self.redactions.get(part, NOTHING_HIDDEN) for part in workflow.split(JOINT)]
        return found[0] if len(found) == 1 else together(found)
