"""The `scopes` and `profiles` sections: which servers and tools each scope exposes."""

from __future__ import annotations

from typing import Annotated, Literal

from taskgate.config.model.identity import ScopeRequirement
from taskgate.config.model.values import Name, Patterns, Strings, on_off
from taskgate.config.sections import BeforeValidator, Field, Section


class ScopeProfile(Section):
    """A named set of servers and tools that several scopes can use.

    `servers` and `tags` are combined; the lists then restrict the result.
    """

    description: str = Field(default="", description="Description for operators.")
    extends: Name | None = Field(default=None, description="Profile to inherit from. The lists of both apply.")
    servers: Strings = Field(default=(), description='Server ids; `"*"` selects all.')
    tags: Strings = Field(default=(), description="Select servers with any of these tags.")
    exclude_servers: Strings = Field(default=(), description="Exclude these servers, however they were selected.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools (globs). Unset: all.")
    tool_denylist: Patterns = Field(default=(), description="Exclude these tools (globs).")


class ProfileOverrides(Section):
    """Further restrictions of the profile for this scope only."""

    servers: Strings | None = Field(default=None, description="Only these servers of the profile.")
    exclude_servers: Strings = Field(default=(), description="Exclude these servers.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools (globs).")
    tool_denylist: Patterns = Field(default=(), description="Exclude these tools (globs).")


class Scope(Section):
    """A set of tools that is served at `/mcp/NAME`."""

    enabled: bool = Field(default=True, description="A disabled scope returns HTTP 404.")
    default_servers: Strings | None = Field(
        default=None,
        description='Servers of a session that requests none; `"*"` selects all. Default: those of `profile` and `tags`.',
    )
    allowed_servers: Strings | None = Field(
        default=None, description="Servers that a session may request. Default: `default_servers`."
    )
    tags: Strings = Field(default=(), description="Servers with any of these tags are added to `default_servers`.")
    profile: Name | None = Field(default=None, description="Profile that provides servers and lists.")
    profile_overrides: ProfileOverrides = Field(
        default_factory=ProfileOverrides.model_construct, description="Further restrictions of the profile."
    )
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools (globs). Unset: all.")
    tool_denylist: Patterns = Field(default=(), description="Exclude these tools (globs).")
    mode: Literal["direct", "facade", "both", "search"] = Field(
        default="direct",
        description="`direct`: the servers' tools; `facade`: the facade tools; `both`; or `search`: three search tools, for "
        "large catalogs.",
    )
    names: Literal["prefixed", "plain"] = Field(
        default="prefixed", description="`prefixed`: `server__tool`; `plain`: the tools' own names."
    )
    helper_tools: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Whether the gateway's helper tools such as `get_task` are listed. `auto` lists them for callers that need "
        "them.",
    )
    scripts: Annotated[Literal["on", "off"], BeforeValidator(on_off)] = Field(
        default="off",
        description="Whether callers may run scripts: `run_script` and `describe_tools`. Needs `pip install 'taskgate[scripts]'`.",
    )
    require: ScopeRequirement | None = Field(default=None, description="What callers need to use this scope.")
