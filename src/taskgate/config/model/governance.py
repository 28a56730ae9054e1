"""The `governance` and `cedar` sections: which calls are forwarded, held for approval, or denied."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from taskgate.config.model.values import Duration, Name, Pattern, Patterns, Section, ServerId, Words

Action = Literal["forward", "approve", "deny", "policy"]


class GovernanceDefaults(Section):
    """What happens to a call that no rule matches."""

    action: Action = Field(default="forward", description="forward, approve, deny, or policy (ask Cedar).")
    approval: Name | None = Field(
        default=None, description="The workflow for approve, and for policy when Cedar names none."
    )


class Rule(Section):
    """One line of the rules; the first that matches decides."""

    match: Pattern = Field(
        description='Glob on the tool\'s own name; also "server:glob", "resource:glob", "prompt:glob".'
    )
    server: ServerId | None = Field(default=None, description="Only for this server.")
    action: Action = Field(description="forward, approve, deny, or policy (ask Cedar).")
    approval: Name | None = Field(
        default=None, description="The workflow to ask; default: the one called default, else the inbox."
    )
    policy_id: str | None = Field(
        default=None, description="Told to Cedar as context.policy_id, so policies know who asks."
    )
    reason: str | None = Field(default=None, description="For approvers and the audit log; callers never see it.")

    @model_validator(mode="after")
    def _fits_its_action(self) -> Rule:
        if self.policy_id is not None and self.action != "policy":
            raise ValueError("policy_id belongs to action: policy; remove it or change the action")
        if self.approval is not None and self.action in ("forward", "deny"):
            raise ValueError(f"approval has no meaning with action: {self.action}; remove it or write action: approve")
        return self


class Grants(Section):
    """Whether an approver may say yes for a while instead of once."""

    enabled: bool = Field(default=True, description="Allow grants such as: this tool, for this scope, for one hour.")
    longest: Duration = Field(default=timedelta(hours=1), description="The longest time a grant may last.")


class Record(Section):
    """Calls kept with their arguments, so that changed rules can be rehearsed on them."""

    sample: float = Field(default=1.0, gt=0, le=1, description="Which part of the calls: 1 is all, 0.1 every tenth.")
    keep: Duration = Field(default=timedelta(days=7), description="How long; at most 200,000 calls in all.")
    redact: Words = Field(
        default=(),
        description="Arguments that are not kept, as in redact_fields; what workflows hide is not kept either.",
    )


class Governance(Section):
    """The rules."""

    defaults: GovernanceDefaults = Field(
        default_factory=GovernanceDefaults, description="For calls that no rule matches."
    )
    rules: tuple[Rule, ...] = Field(default=(), description="In order; the first match wins.")
    force_required: Patterns = Field(default=(), description="Tools shown as needing a task, whatever the rules say.")
    grants: Grants = Field(default_factory=Grants, description="Approvals that last.")
    record: Record | None = Field(
        default=None, description="Keep calls for `taskgate policy rehearse`; without it nothing is kept but digests."
    )


class Cedar(Section):
    """Cedar policies, asked by `action: policy`."""

    policies: Words = Field(default=(), description="Policy files, relative to this file.")
    entities: str | None = Field(default=None, description="A JSON file of Cedar entities, relative to this file.")
