"""The `approval` section: workflows, and the channels that reach approvers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from taskgate.config.model.values import Count, Duration, HeaderMap, HttpUrl, Section, Whole, Words


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
