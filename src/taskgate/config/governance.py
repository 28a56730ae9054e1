"""Which calls go through, which wait for a person and how people are asked, which are refused, and where Cedar decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from taskgate.config.overlays import branch
from taskgate.config.problems import Entry, Mapping, Node, Problem, Scalar, Sequence, problem_at
from taskgate.config.words import (
    Count,
    Duration,
    HeaderMap,
    HttpUrl,
    Name,
    Pattern,
    Patterns,
    Section,
    ServerId,
    Whole,
    Words,
)

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


# Approval workflows: who is asked, where, for how long, and what silence means (no).


def _silence_is_no(value: Any) -> Any:
    if value == "approve":
        raise ValueError("silence would mean yes; if that is what you want, write unsafe_on_timeout: approve")
    return value


class InboxChannel(Section):
    """The gateway's own inbox: web page, API and command line."""

    type: Literal["inbox"] = Field(default="inbox", description="inbox")


class WebhookChannel(Section):
    """A signed request to an address of yours, answered by a signed callback."""

    type: Literal["webhook"] = Field(default="webhook", description="webhook")
    url: HttpUrl = Field(description="Where the question is posted.")
    secret: Annotated[str, Field(min_length=1)] = Field(repr=False, description="Key of the HMAC signatures.")
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="Headers to send along.")
    timeout: Duration = Field(default=timedelta(seconds=10), description="For one attempt.")
    retries: Annotated[Whole, Field(ge=0, le=20)] = Field(
        default=5, description="Attempts after the first, with growing pauses."
    )


class SlackChannel(Section):
    """A card in a Slack channel."""

    type: Literal["slack"] = Field(default="slack", description="slack")
    channel: str = Field(description="Channel id or name.")
    bot_token: Annotated[str, Field(min_length=1)] = Field(repr=False, description="Token that begins with xoxb-.")
    app_token: str | None = Field(
        default=None, repr=False, description="Token that begins with xapp-, for Socket Mode."
    )
    mode: Literal["socket", "reactions"] = Field(
        default="socket", description="Buttons over Socket Mode, or polling for reactions."
    )
    poll_interval: Duration = Field(default=timedelta(seconds=5), description="With reactions: how often to look.")
    approvers: dict[str, str] = Field(
        default_factory=dict, description="Slack user id to token id, for n-of-m and self-approval."
    )
    api_url: HttpUrl = Field(default="https://slack.com/api/", description="Where Slack's API is.")

    @model_validator(mode="after")
    def _socket_needs_its_token(self) -> SlackChannel:
        if self.mode == "socket" and not self.app_token:
            raise ValueError("mode socket needs app_token; add it, or write mode: reactions")
        return self


class ElicitationChannel(Section):
    """The caller's own elicitation; only where the person at the client may approve."""

    type: Literal["elicitation"] = Field(default="elicitation", description="elicitation")
    mode: Literal["form", "url"] = Field(
        default="url", description="A form in the client, or a link to the approval page."
    )


class NotifyChannel(Section):
    """A message to anything that apprise can reach; the decision is made elsewhere."""

    type: Literal["notify"] = Field(default="notify", description="notify")
    urls: Words = Field(repr=False, description="Apprise addresses.")


Channel = Annotated[
    InboxChannel | WebhookChannel | SlackChannel | ElicitationChannel | NotifyChannel, Field(discriminator="type")
]


class Workflow(Section):
    """How one kind of approval is asked for."""

    channels: tuple[Channel, ...] = Field(
        default=(InboxChannel(),), min_length=1, description="Where people are asked: inbox, or a map with type."
    )
    timeout: Duration = Field(
        default=timedelta(minutes=10), gt=timedelta(0), description="How long the question stays open."
    )
    on_timeout: Annotated[Literal["deny"], BeforeValidator(_silence_is_no)] = Field(
        default="deny", description="Silence means deny."
    )
    unsafe_on_timeout: Literal["approve"] | None = Field(
        default=None,
        description="approve: silence means yes. Named unsafe because it is; shown in a banner and in the audit log.",
    )
    approvers: Words = Field(
        default=("*",),
        description='Who may decide: ids of tokens, group:NAME or role:NAME; "*" is everyone with the role approver.',
    )
    approvals_needed: Count = Field(default=1, description="How many different people must agree.")
    self_approval: bool = Field(default=False, description="Whether the requester may approve their own call.")
    redact_fields: Words = Field(
        default=(), description="Dotted paths or globs of arguments that approvers and audit do not see."
    )
    decision_valid_for: Duration = Field(
        default=timedelta(minutes=15), gt=timedelta(0), description="How long a yes stays good until the call is sent."
    )

    max_auth_age: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="How long ago somebody may have logged in to the pages to approve; older logins must be renewed first.",
    )

    @model_validator(mode="after")
    def _enough_people(self) -> Workflow:
        if not self.approvers:
            raise ValueError('nobody may approve; name token ids in approvers, or write ["*"]')
        named = not any(name == "*" or name.startswith(("group:", "role:")) for name in self.approvers)
        if named and len(set(self.approvers)) < self.approvals_needed:
            raise ValueError(
                f"approvals_needed is {self.approvals_needed} but only {len(set(self.approvers))} approvers are named; "
                "name more or ask for fewer"
            )
        if all(isinstance(channel, NotifyChannel) for channel in self.channels):
            raise ValueError("no channel can take a decision (notify only tells); add inbox")
        return self
