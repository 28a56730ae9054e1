"""Servers, their lists and budgets, and the accounts that are connected at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType, field

from taskgate.replies.fields import about


class AccountRow(Struct, frozen=True, kw_only=True):
    """An account that is connected at a server."""

    principal: Annotated[str | None, about("owner; null for the account that all callers share")]
    state: Annotated[str, about("`connected` or `ended`")]
    issuer: Annotated[str, about("authorization server")]
    scope: Annotated[str | None, about("OAuth scopes")]
    renews: Annotated[bool, about("whether the login is renewed by itself")]
    expires_at: Annotated[int | None, about("end of the access token, in seconds since 1970")]


class Accounts(Struct, frozen=True, kw_only=True):
    """The accounts at a server."""

    server: Annotated[str, about("name of the server")]
    accounts: Sequence[AccountRow]


class BrowserLink(Struct, frozen=True, kw_only=True):
    """A link."""

    url: Annotated[str, about("address to open in a browser")]

    def __repr__(self) -> str:
        """Without the address: it may log its holder in."""
        return "Link()"


class Disconnected(Struct, frozen=True, kw_only=True):
    """The reply to the request to disconnect an account."""

    disconnected: Annotated[bool, about("false if there was no such account")]


class ServerRow(Struct, frozen=True, kw_only=True):
    """A server in a list."""

    name: Annotated[str, about("name of the server")]
    transport: Annotated[str, about("`stdio` or `http`")]
    state: Annotated[str, about("state of the connection")]
    generations: Annotated[Sequence[str], about("protocol generations of the server, as far as known")]
    reconnect_attempt: Annotated[int, about("number of failed attempts since the last connection")]
    next_retry_ms: Annotated[int | None, about("time until the next attempt, in milliseconds")]
    last_error: Annotated[str | None, about("last error")]
    stderr: Annotated[Sequence[str], about("last lines of stderr")]
    drained: Annotated[bool, about("whether it was removed from every scope")] = False
    tool_count: Annotated[int | None, about("number of tools; null while the server has not returned its list")]
    calls: Annotated[int, about("recent calls that the percentiles are from")]
    errors: Annotated[int, about("how many of those failed")]
    p50_ms: Annotated[float | None, about("median latency")]
    p99_ms: Annotated[float | None, about("99th percentile of the latency")]


class ListReport(Struct, frozen=True, kw_only=True):
    """The state of the lists of a server."""

    listed: Annotated[bool, about("whether it has been listed")]
    problem: Annotated[str | UnsetType, about("why the last attempt failed")] = UNSET
    generation: Annotated[str | UnsetType | None, about("generation in which it was listed")] = UNSET
    tools: Annotated[int | UnsetType, about("number of tools")] = UNSET
    prompts: Annotated[int | UnsetType, about("number of prompts")] = UNSET
    resources: Annotated[int | UnsetType, about("number of resources")] = UNSET
    resource_templates: Annotated[int | UnsetType, about("number of resource templates")] = field(
        name="resourceTemplates", default=UNSET
    )
    skills: Annotated[int | UnsetType, about("number of skills")] = UNSET
    age_s: Annotated[int | UnsetType, about("age of the lists in seconds")] = UNSET
    failed: Annotated[
        Mapping[str, Any] | UnsetType,
        about("error by list that could not be fetched, for example `prompts/list`"),
    ] = UNSET


class BudgetsInUse(Struct, frozen=True, kw_only=True):
    """Limits of a server, and what is in use."""

    timeout_ms: Annotated[int, about("timeout of a call")]
    max_concurrency: Annotated[int | None, about("largest number of concurrent calls")]
    max_tool_output_bytes: Annotated[int | None, about("largest output of a tool")]
    running: Annotated[int | None, about("calls that hold a slot")]
    waiting: Annotated[int | None, about("calls that wait for a slot")]


class ServerTool(Struct, frozen=True, kw_only=True):
    """A tool of a server."""

    name: Annotated[str, about("name at the server")]
    digest: Annotated[str, about("digest of the definition")]
    changed: Annotated[bool, about("whether the definition differs from its pin")]
    quarantined: Annotated[bool, about("whether it is hidden until accepted")]


class ServerDetail(ServerRow, frozen=True, kw_only=True):
    """One server."""

    lists: Annotated[ListReport, about("state of its lists")]
    budgets: BudgetsInUse
    tools: Sequence[ServerTool]
    accounts: Annotated[Sequence[AccountRow] | None, about("connected accounts; null if the server has none")]


class ServerAction(Struct, frozen=True, kw_only=True):
    """The reply to an action on a server."""

    name: Annotated[str, about("name of the server")]
    done: Annotated[str, about("`reconnected`, `drained` or `enabled`")]
