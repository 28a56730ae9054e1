"""Which calls go through, which wait for a person, which are refused, and where Cedar decides.

Short and older ways of writing this and `approval` are brought into the form of their sections first:
`task_annotation_overrides.force_required` joins `governance.force_required`; a channel written as one word becomes a map with that
type; the kinds of `auth` that do not exist yet are answered with a clear "not yet".
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from taskgate.config.overlays import branch
from taskgate.config.problems import Problem, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence
from taskgate.config.words import Duration, Name, Pattern, Patterns, Section, ServerId, Words

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


_LATER_AUTH = frozenset({"mtls", "oidc"})


def gather_governance(root: Mapping) -> tuple[Mapping, list[Problem]]:
    """The root with everything about governance in our own form."""
    problems: list[Problem] = []
    root = _with_alias(_without_later_auth(root, problems), problems)
    return _with_channels(root), problems


def _without_later_auth(root: Mapping, problems: list[Problem]) -> Mapping:
    auth = root.get("auth")
    if not isinstance(auth, Mapping):
        return root
    for key in _LATER_AUTH & auth.entries.keys():
        hint = "remove it; until then callers and approvers are told apart by `tokens`"
        problems.append(problem_at(auth.entries[key].key_mark, f"auth.{key}", "is not available yet", hint))
        auth = auth.without(key)
    return root.with_value("auth", auth)


def _with_alias(root: Mapping, problems: list[Problem]) -> Mapping:
    alias = root.entries.get("task_annotation_overrides")
    if alias is None:
        return root
    root = root.without("task_annotation_overrides")
    if not isinstance(alias.value, Mapping):
        problems.append(problem_at(alias.key_mark, alias.key, "must be a map", "write {force_required: [tool]}"))
        return root
    for entry in alias.value.without("force_required"):
        key = f"{alias.key}.{entry.key}"
        problems.append(problem_at(entry.key_mark, key, "unknown key", "only force_required is known here"))
    added = alias.value.get("force_required")
    governance = branch(root, "governance")
    words = (*_items(governance.get("force_required")), *_items(added))
    merged = Sequence(words, added.mark if added else alias.key_mark)
    return root.with_value("governance", governance.with_value("force_required", merged, alias.key_mark))


def _items(node: Node | None) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.items
    return () if node is None else (node,)


def _with_channels(root: Mapping) -> Mapping:
    workflows = root.get("approval")
    if not isinstance(workflows, Mapping):
        return root
    for entry in workflows:
        if isinstance(entry.value, Mapping) and "channels" in entry.value.entries:
            channels = entry.value.entries["channels"]
            value = Sequence(tuple(_channel(item) for item in _items(channels.value)), channels.value.mark)
            workflows = workflows.with_value(entry.key, entry.value.with_value("channels", value))
    return root.with_value("approval", workflows)


def _channel(node: Node) -> Node:
    if isinstance(node, Scalar) and node.text is not None:
        return Mapping({"type": Entry("type", node.mark, node)}, node.mark)
    return node
