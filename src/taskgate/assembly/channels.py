"""Build the approval channels that the configuration names. A channel's library is imported only if a workflow uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from taskgate.assembly.governing import principal_names
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.settings.approval import NotifyChannel, SlackChannel, WebhookChannel
from taskgate.core.settings.approval import Workflow as ConfiguredWorkflow
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.ports.approval_channel import ApprovalChannel

if TYPE_CHECKING:
    import httpx2


SLACK_PREFIX: Final = "slack:"


class Outbound:
    """One HTTP client for everything that is not a tool call. It is created on first use, which takes 50 ms, so code that runs
    while the gateway serves gets it in a thread.
    """

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None
        self._making = threading.Lock()

    def client(self) -> httpx2.AsyncClient:
        if self._client is None:
            with self._making:
                if self._client is None:
                    import httpx2

                    self._client = httpx2.AsyncClient(follow_redirects=False, trust_env=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def build_channels(
    root: GatewayFile, base_url: str, outbound: Outbound, *, passphrase_set: bool, now_s: Callable[[], float]
) -> dict[str, tuple[ApprovalChannel, ...]]:
    """Return the channels of each workflow, without the inbox and the caller's own elicitation, which need no adapter.

    `now_s` is the store's clock, by which approvals expire.
    """
    slack_people, names = _slack_people(root), principal_names(root)
    return {
        name: _channels(
            name,
            workflow,
            base_url,
            outbound,
            passphrase_set=passphrase_set,
            slack_people=slack_people,
            names=names,
            now_s=now_s,
        )
        for name, workflow in root.approval.items()
    }


def _slack_people(root: GatewayFile) -> dict[str, str]:
    """Return the Slack users in `people`, each with the first other identity of the person."""
    found: dict[str, str] = {}
    for identities in root.people.values():
        other = next((each for each in identities if not each.startswith(SLACK_PREFIX)), None)
        users = [each.removeprefix(SLACK_PREFIX) for each in identities if each.startswith(SLACK_PREFIX)]
        found |= {user: other for user in users if other is not None}
    return found


def _channels(
    name: str,
    workflow: ConfiguredWorkflow,
    base_url: str,
    outbound: Outbound,
    *,
    passphrase_set: bool,
    slack_people: Mapping[str, str],
    names: Mapping[str, str],
    now_s: Callable[[], float],
) -> tuple[ApprovalChannel, ...]:
    made: list[ApprovalChannel] = []
    for channel in workflow.channels:
        try:
            if isinstance(channel, WebhookChannel):
                callback = f"{base_url}/api/approvals/callback/{name}/{len(made)}"
                made.append(_webhook(channel, callback, outbound, passphrase_set, now_s))
            elif isinstance(channel, SlackChannel):
                known = {**slack_people, **channel.approvers}
                approvers = {user: names.get(each, each) for user, each in known.items()}
                made.append(_slack(channel, approvers, now_s))
            elif isinstance(channel, NotifyChannel):
                made.append(_notify(channel))
        except ImportError as error:
            raise _missing(name, channel.type, str(error)) from None
        except ValueError as error:
            raise ConfigError(
                [Problem(file="configuration", line=0, column=0, key=f"approval.{name}.channels", message=str(error))]
            ) from None
    return tuple(made)


def _webhook(
    channel: WebhookChannel, callback_url: str, outbound: Outbound, passphrase_set: bool, now_s: Callable[[], float]
) -> ApprovalChannel:
    from taskgate.channels.webhook import WebhookChannel as Webhook
    from taskgate.channels.webhook import WebhookSettings

    return Webhook(
        WebhookSettings(
            url=str(channel.url),
            secret=channel.secret,
            callback_url=callback_url,
            headers=dict(channel.headers),
            timeout_s=channel.timeout,
            retries=channel.retries,
            operator_may_decide=not passphrase_set,
        ),
        outbound.client(),
        store_now_s=now_s,
    )


def _slack(channel: SlackChannel, approvers: Mapping[str, str], now_s: Callable[[], float]) -> ApprovalChannel:
    from taskgate.channels.slack import SlackChannel as Slack
    from taskgate.channels.slack import SlackSettings

    return Slack(
        SlackSettings(
            channel=channel.channel,
            bot_token=channel.bot_token,
            app_token=channel.app_token if channel.mode == "socket" else None,
            approvers=approvers,
            poll_interval_s=channel.poll_interval,
            api_url=str(channel.api_url),
        ),
        now_s=now_s,
    )


def _notify(channel: NotifyChannel) -> ApprovalChannel:
    from taskgate.channels.notify import NotifyChannel as Notify

    return Notify(channel.urls)


def _missing(workflow: str, kind: str, error: str) -> ConfigError:
    hint = f'install it: pip install "taskgate[{kind}]"'
    message = f"the channel {kind} needs a library that is not installed ({error})"
    return ConfigError(
        [
            Problem(
                file="configuration", line=0, column=0, key=f"approval.{workflow}.channels", message=message, hint=hint
            )
        ]
    )
