"""The `governance` and `cedar` sections: which calls are forwarded, held for approval, or denied."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import Section
from taskgate.core.settings.values import Duration, Name, Pattern, Patterns, Plain, ServerId, Strings


class Action(StrEnum):
    """What a rule, a record or the defaults may require."""

    FORWARD = "forward"
    APPROVE = "approve"
    DENY = "deny"
    POLICY = "policy"


class GovernanceDefaults(Section):
    """What happens to a call that no rule matches."""

    action: Annotated[
        Action,
        Meta(
            description="`forward`, `approve` (hold for approval), `deny`, or `policy` (evaluate the Cedar policies)."
        ),
    ] = Action.FORWARD
    approval: Annotated[
        Name | None, Meta(description="Workflow for `approve`, and for `policy` when Cedar names none.")
    ] = None


class Rule(Section):
    """One rule. The first rule that matches a call decides."""

    match: Annotated[
        Pattern,
        Meta(
            description='Glob on the tool\'s own name, for example `"delete_*"`. Also `"server:glob"`, `"resource:glob"` and '
            '`"prompt:glob"`.'
        ),
    ]
    action: Annotated[
        Action,
        Meta(
            description="`forward`, `approve` (hold for approval), `deny`, or `policy` (evaluate the Cedar policies)."
        ),
    ]
    server: Annotated[ServerId | None, Meta(description="Apply the rule to this server only.")] = None
    from_: Annotated[
        Literal["script"] | None,
        Meta(
            description="`script`: apply the rule only to calls that scripts make (`run_script`). Default: all calls. The same "
            "as the condition `from_script: true`."
        ),
    ] = field(name="from", default=None)
    when: Annotated[
        dict[str, Plain],
        Meta(
            description='Conditions on facts, all of which must be met, for example `{argument.amount: "> 1000"}`. All '
            "facts: [conditions](conditions.md)."
        ),
    ] = field(default_factory=dict)
    approval: Annotated[
        Name | None, Meta(description="Workflow for `approve`. Default: the one named `default`, else the inbox.")
    ] = None
    policy_id: Annotated[
        str | None, Meta(description="Passed to Cedar as `context.policy_id`, so that policies can distinguish rules.")
    ] = None
    reason: Annotated[str | None, Meta(description="Shown to approvers and in the audit log, never to callers.")] = None

    def __post_init__(self) -> None:
        if self.policy_id is not None and self.action is not Action.POLICY:
            raise ValueError("policy_id applies only to action: policy; remove it or change the action")
        if self.approval is not None and self.action in (Action.FORWARD, Action.DENY):
            raise ValueError(f"approval has no effect with action: {self.action}; remove it or write action: approve")


class Grants(Section):
    """Approvals that apply to further calls for a limited time."""

    enabled: Annotated[
        bool,
        Meta(
            description="Allow approvers to grant further calls, for example: this tool, in this scope, for one hour."
        ),
    ] = True
    longest: Annotated[Duration, Meta(description="Longest duration of a grant.")] = duration("1h")


class Record(Section):
    """Keep calls with their arguments, so that changed rules can be tested on them with `taskgate policy rehearse`."""

    sample: Annotated[
        float, Meta(gt=0, le=1, description="Fraction of calls that is recorded: 1 is all, 0.1 every tenth.")
    ] = 1.0
    keep: Annotated[
        Duration, Meta(description="How long recorded calls are kept. At most 200,000 calls are kept in total.")
    ] = duration("7d")
    redact: Annotated[
        Strings,
        Meta(
            description="Arguments that are not recorded, in the form of `redact_fields`. Arguments that a workflow redacts "
            "are not recorded either."
        ),
    ] = ()


class Governance(Section):
    """Rules that forward, hold or deny calls."""

    defaults: Annotated[GovernanceDefaults, Meta(description="For calls that no rule matches.")] = GovernanceDefaults()
    rules: Annotated[tuple[Rule, ...], Meta(description="Evaluated in order; the first match decides.")] = ()
    force_required: Annotated[
        Patterns, Meta(description="Tools (globs) that always declare `taskSupport: required`.")
    ] = ()
    grants: Annotated[Grants, Meta(description="Time-limited approvals.")] = Grants()
    record: Annotated[
        Record | None,
        Meta(description="Record calls for `taskgate policy rehearse`. Unset: only digests of arguments are kept."),
    ] = None


class Cedar(Section):
    """Cedar policies, evaluated by rules with `action: policy`."""

    policies: Annotated[
        Strings, Meta(description="Policy files, relative to this file, for example `[./policies.cedar]`.")
    ] = ()
    entities: Annotated[str | None, Meta(description="JSON file of Cedar entities, relative to this file.")] = None
