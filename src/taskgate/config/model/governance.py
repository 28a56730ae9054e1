"""The `governance` and `cedar` sections: which calls are forwarded, held for approval, or denied."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from taskgate.config.model.values import Duration, Name, Pattern, Patterns, ServerId, Strings
from taskgate.config.sections import Field, Section, model_validator
from taskgate.core.patterns import Pattern as CompiledPattern
from taskgate.core.patterns import PatternKind

Action = Literal["forward", "approve", "deny", "policy"]


class GovernanceDefaults(Section):
    """What happens to a call that no rule matches."""

    action: Action = Field(
        default="forward",
        description="`forward`, `approve` (hold for approval), `deny`, or `policy` (evaluate the Cedar policies).",
    )
    approval: Name | None = Field(
        default=None, description="Workflow for `approve`, and for `policy` when Cedar names none."
    )


class Rule(Section):
    """One rule. The first rule that matches a call decides."""

    match: Pattern = Field(
        description='Glob on the tool\'s own name, for example `"delete_*"`. Also `"server:glob"`, `"resource:glob"` and '
        '`"prompt:glob"`.'
    )
    server: ServerId | None = Field(default=None, description="Apply the rule to this server only.")
    from_: Literal["script"] | None = Field(
        default=None,
        alias="from",
        description="`script`: apply the rule only to calls that scripts make (`run_script`). Default: all calls.",
    )
    action: Action = Field(
        description="`forward`, `approve` (hold for approval), `deny`, or `policy` (evaluate the Cedar policies)."
    )
    approval: Name | None = Field(
        default=None, description="Workflow for `approve`. Default: the one named `default`, else the inbox."
    )
    policy_id: str | None = Field(
        default=None, description="Passed to Cedar as `context.policy_id`, so that policies can distinguish rules."
    )
    reason: str | None = Field(default=None, description="Shown to approvers and in the audit log, never to callers.")

    @model_validator
    def _check_action(self) -> Rule:
        if self.policy_id is not None and self.action != "policy":
            raise ValueError("policy_id applies only to action: policy; remove it or change the action")
        if self.approval is not None and self.action in ("forward", "deny"):
            raise ValueError(f"approval has no effect with action: {self.action}; remove it or write action: approve")
        if self.from_ is not None and CompiledPattern.compile(self.match).kind is not PatternKind.TOOL:
            raise ValueError("from: script applies only to tools, because scripts call nothing else; remove it")
        return self


class Grants(Section):
    """Approvals that apply to further calls for a limited time."""

    enabled: bool = Field(
        default=True,
        description="Allow approvers to grant further calls, for example: this tool, in this scope, for one hour.",
    )
    longest: Duration = Field(default=timedelta(hours=1), description="Longest duration of a grant.")


class Record(Section):
    """Keep calls with their arguments, so that changed rules can be tested on them with `taskgate policy rehearse`."""

    sample: float = Field(
        default=1.0, gt=0, le=1, description="Fraction of calls that is recorded: 1 is all, 0.1 every tenth."
    )
    keep: Duration = Field(
        default=timedelta(days=7),
        description="How long recorded calls are kept. At most 200,000 calls are kept in total.",
    )
    redact: Strings = Field(
        default=(),
        description="Arguments that are not recorded, in the form of `redact_fields`. Arguments that a workflow redacts are "
        "not recorded either.",
    )


class Governance(Section):
    """Rules that forward, hold or deny calls."""

    defaults: GovernanceDefaults = Field(
        default_factory=GovernanceDefaults.model_construct, description="For calls that no rule matches."
    )
    rules: tuple[Rule, ...] = Field(default=(), description="Evaluated in order; the first match decides.")
    force_required: Patterns = Field(
        default=(), description="Tools (globs) that always declare `taskSupport: required`."
    )
    grants: Grants = Field(default_factory=Grants.model_construct, description="Time-limited approvals.")
    record: Record | None = Field(
        default=None,
        description="Record calls for `taskgate policy rehearse`. Unset: only digests of arguments are kept.",
    )


class Cedar(Section):
    """Cedar policies, evaluated by rules with `action: policy`."""

    policies: Strings = Field(
        default=(), description="Policy files, relative to this file, for example `[./policies.cedar]`."
    )
    entities: str | None = Field(default=None, description="JSON file of Cedar entities, relative to this file.")
