"""The `approval` section: workflows, and the channels that reach approvers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from taskgate.config.model.values import Count, Duration, HeaderMap, HttpUrl, Integer, Strings
from taskgate.config.sections import BeforeValidator, Field, Section, model_validator


def _no_auto_approval(value: Any) -> Any:
    if value == "approve":
        raise ValueError(
            "would approve unanswered calls; write deny, or, if you accept the risk, unsafe_on_timeout: approve"
        )
    return value


class InboxChannel(Section):
    """The gateway's inbox: the web console, the HTTP API and `taskgate approvals`."""

    type: Literal["inbox"] = Field(default="inbox", description="`inbox`")


class WebhookChannel(Section):
    """A signed HTTP request to your service, which decides with a signed callback."""

    type: Literal["webhook"] = Field(default="webhook", description="`webhook`")
    url: HttpUrl = Field(description="Address that receives the request.")
    secret: Annotated[str, Field(min_length=1)] = Field(
        repr=False, description="HMAC key for the signatures, by reference, for example `${env:WEBHOOK_SECRET}`."
    )
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="Additional request headers.")
    timeout: Duration = Field(default=timedelta(seconds=10), description="Timeout of one attempt.")
    retries: Annotated[Integer, Field(ge=0, le=20)] = Field(
        default=5, description="Retries after the first attempt, with increasing delay."
    )


class SlackChannel(Section):
    """A message in a Slack channel."""

    type: Literal["slack"] = Field(default="slack", description="`slack`")
    channel: str = Field(description="Channel id or name.")
    bot_token: Annotated[str, Field(min_length=1)] = Field(
        repr=False, description="Bot token (`xoxb-…`), by reference."
    )
    app_token: str | None = Field(
        default=None, repr=False, description="App token (`xapp-…`) for Socket Mode, by reference."
    )
    mode: Literal["socket", "reactions"] = Field(
        default="socket", description="`socket`: buttons through Socket Mode; `reactions`: poll for emoji reactions."
    )
    poll_interval: Duration = Field(
        default=timedelta(seconds=5), description="With `mode: reactions`: polling interval."
    )
    approvers: dict[str, str] = Field(
        default_factory=dict,
        description="Slack user id to token id. Needed to count approvers and to detect self-approval.",
    )
    api_url: HttpUrl = Field(default="https://slack.com/api/", description="Base URL of the Slack API.")

    @model_validator
    def _require_app_token(self) -> SlackChannel:
        if self.mode == "socket" and not self.app_token:
            raise ValueError("mode socket needs app_token; add it, or write mode: reactions")
        return self


class ElicitationChannel(Section):
    """An MCP elicitation to the caller. Use it only where the person at the client may approve."""

    type: Literal["elicitation"] = Field(default="elicitation", description="`elicitation`")
    mode: Literal["form", "url"] = Field(
        default="url", description="`form`: a form in the client; `url`: a link to the approval page."
    )


class NotifyChannel(Section):
    """A notification through Apprise. It cannot take a decision, so combine it with another channel."""

    type: Literal["notify"] = Field(default="notify", description="`notify`")
    urls: Strings = Field(repr=False, description="Apprise URLs.")


Channel = Annotated[
    InboxChannel | WebhookChannel | SlackChannel | ElicitationChannel | NotifyChannel, Field(discriminator="type")
]


class Workflow(Section):
    """How approvals of one kind are requested and decided."""

    channels: tuple[Channel, ...] = Field(
        default=(InboxChannel.model_construct(),),
        min_length=1,
        description="Where approvers are asked: `inbox`, or a map with `type`.",
    )
    timeout: Duration = Field(
        default=timedelta(minutes=10), gt=timedelta(0), description="How long an approval stays open."
    )
    on_timeout: Annotated[Literal["deny"], BeforeValidator(_no_auto_approval)] = Field(
        default="deny", description="Unanswered approvals are denied."
    )
    unsafe_on_timeout: Literal["approve"] | None = Field(
        default=None,
        description="`approve`: unanswered approvals are approved. Unsafe; shown in a banner and in the audit log.",
    )
    approvers: Strings = Field(
        default=("*",),
        description="Who may decide: token ids (`acme/ann` with a tenant), `group:NAME` or `role:NAME`. "
        '`"*"` is every caller with the role approver.',
    )
    approvals_needed: Count = Field(default=1, description="Number of different approvers that must approve.")
    self_approval: bool = Field(default=False, description="Whether a caller may approve their own call.")
    redact_fields: Strings = Field(
        default=(),
        description="Arguments (dotted paths or globs) that are hidden from approvers and the audit log, for example `[token, "
        '"*.password"]`.',
    )
    decision_valid_for: Duration = Field(
        default=timedelta(minutes=15),
        gt=timedelta(0),
        description="How long an approval stays valid until the call is sent.",
    )

    max_auth_age: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="Approvers must have logged in to the console within this time; an older login must be renewed first.",
    )

    @model_validator
    def _check_approvers(self) -> Workflow:
        if not self.approvers:
            raise ValueError('has no approvers; list token ids in approvers, or write ["*"]')
        named = not any(name == "*" or name.startswith(("group:", "role:")) for name in self.approvers)
        if named and len(set(self.approvers)) < self.approvals_needed:
            raise ValueError(
                f"approvals_needed is {self.approvals_needed}, but approvers lists only {len(set(self.approvers))}; "
                "list more, or lower approvals_needed"
            )
        if all(isinstance(channel, NotifyChannel) for channel in self.channels):
            raise ValueError("no channel can take a decision (notify only sends); add inbox")
        return self
