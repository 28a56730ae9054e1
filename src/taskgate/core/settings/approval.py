"""The `approval` section: workflows, and the channels that reach approvers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import SECRET, Section, read_by
from taskgate.core.settings.values import Count, Duration, HeaderMap, HttpUrl, Strings


def _no_auto_approval(word: str) -> str:
    if word == "approve":
        raise ValueError(
            "would approve unanswered calls; write deny, or, if you accept the risk, unsafe_on_timeout: approve"
        )
    return word


class ChannelSettings(Section, tag_field="type"):
    """How approvers are asked. `type` in the file selects the kind."""

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class InboxChannel(ChannelSettings, tag="inbox"):
    """The gateway's inbox: the web console, the HTTP API and `taskgate approvals`."""


class WebhookChannel(ChannelSettings, tag="webhook"):
    """A signed HTTP request to your service, which decides with a signed callback."""

    url: Annotated[HttpUrl, Meta(description="Address that receives the request.")]
    secret: Annotated[
        str,
        Meta(
            min_length=1,
            extra=SECRET,
            description="HMAC key for the signatures, by reference, for example `${env:WEBHOOK_SECRET}`.",
        ),
    ]
    headers: Annotated[HeaderMap, Meta(extra=SECRET, description="Additional request headers.")] = field(
        default_factory=dict
    )
    timeout: Annotated[Duration, Meta(description="Timeout of one attempt.")] = duration("10s")
    retries: Annotated[
        int,
        Meta(ge=0, le=20, description="Retries after the first attempt, with increasing delay."),
    ] = 5


class SlackChannel(ChannelSettings, tag="slack"):
    """A message in a Slack channel."""

    channel: Annotated[str, Meta(description="Channel id or name.")]
    bot_token: Annotated[
        str,
        Meta(min_length=1, extra=SECRET, description="Bot token (`xoxb-…`), by reference."),
    ]
    app_token: Annotated[
        str | None, Meta(extra=SECRET, description="App token (`xapp-…`) for Socket Mode, by reference.")
    ] = None
    mode: Annotated[
        Literal["socket", "reactions"],
        Meta(description="`socket`: buttons through Socket Mode; `reactions` (deprecated): poll for emoji reactions."),
    ] = "socket"
    poll_interval: Annotated[Duration, Meta(description="With `mode: reactions`: polling interval.")] = duration("5s")
    approvers: Annotated[
        dict[str, str],
        Meta(description="Slack user id to token id. Needed to count approvers and to detect self-approval."),
    ] = field(default_factory=dict)
    api_url: Annotated[HttpUrl, Meta(description="Base URL of the Slack API.")] = "https://slack.com/api/"

    def __post_init__(self) -> None:
        if self.mode == "socket" and not self.app_token:
            raise ValueError("mode socket needs app_token; add it, or write mode: reactions")


class ElicitationChannel(ChannelSettings, tag="elicitation"):
    """An MCP elicitation to the caller. Use it only where the person at the client may approve."""

    mode: Annotated[
        Literal["form", "url"], Meta(description="`form`: a form in the client; `url`: a link to the approval page.")
    ] = "url"


class NotifyChannel(ChannelSettings, tag="notify"):
    """A notification through Apprise. It cannot take a decision, so combine it with another channel."""

    urls: Annotated[Strings, Meta(extra=SECRET, description="Apprise URLs.")]


Channel = InboxChannel | WebhookChannel | SlackChannel | ElicitationChannel | NotifyChannel


class Workflow(Section):
    """How approvals of one kind are requested and decided."""

    channels: Annotated[
        tuple[Channel, ...], Meta(min_length=1, description="Where approvers are asked: `inbox`, or a map with `type`.")
    ] = (InboxChannel(),)
    timeout: Annotated[Duration, Meta(gt=0, description="How long an approval stays open.")] = duration("10m")
    on_timeout: Annotated[
        Literal["deny"],
        read_by(_no_auto_approval),
        Meta(description="Unanswered approvals are denied."),
    ] = "deny"
    unsafe_on_timeout: Annotated[
        Literal["approve"] | None,
        Meta(
            description="`approve`: unanswered approvals are approved. Unsafe; shown in a banner and in the audit log."
        ),
    ] = None
    approvers: Annotated[
        Strings,
        Meta(
            description='Who may decide: token ids (`acme/ann` with a tenant), `group:NAME` or `role:NAME`. `"*"` is every '
            "caller with the role approver."
        ),
    ] = ("*",)
    approvals_needed: Annotated[Count, Meta(description="Number of different approvers that must approve.")] = 1
    self_approval: Annotated[bool, Meta(description="Whether a caller may approve their own call.")] = False
    redact_fields: Annotated[
        Strings,
        Meta(
            description="Arguments (dotted paths or globs) that are hidden from approvers and the audit log, for example "
            '`[token, "*.password"]`.'
        ),
    ] = ()
    decision_valid_for: Annotated[
        Duration, Meta(gt=0, description="How long an approval stays valid until the call is sent.")
    ] = duration("15m")

    max_auth_age: Annotated[
        Annotated[Duration, Meta(gt=0)] | None,
        Meta(
            description="Approvers must have logged in to the console within this time; an older login must be renewed first.",
        ),
    ] = None

    def __post_init__(self) -> None:
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
