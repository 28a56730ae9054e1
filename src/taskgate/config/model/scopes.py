"""The `scopes` and `profiles` sections: which servers and tools each scope exposes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from taskgate.config.model.identity import ScopeRequirement
from taskgate.config.model.values import Name, Patterns, Section, Words


class ScopeProfile(Section):
    """A named bundle of servers that scopes share. `servers` and `tags` are a union; the lists then narrow."""

    description: str = Field(default="", description="For people.")
    extends: Name | None = Field(default=None, description="Another profile to start from; the lists of both apply.")
    servers: Words = Field(default=(), description='Server ids; "*" means all.')
    tags: Words = Field(default=(), description="Servers that bear any of these tags.")
    exclude_servers: Words = Field(default=(), description="Never these servers, however they were selected.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools; without it all.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")


class ProfileOverrides(Section):
    """Narrows a scope's profile further, for this scope only."""

    servers: Words | None = Field(default=None, description="Only these of the profile's servers.")
    exclude_servers: Words = Field(default=(), description="None of these servers.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")


class Scope(Section):
    """What is served at /mcp/NAME."""

    enabled: bool = Field(default=True, description="A disabled scope answers 404.")
    default_servers: Words | None = Field(
        default=None,
        description='Servers a session gets if it does not choose; "*" means all. Default: those of profile and tags.',
    )
    allowed_servers: Words | None = Field(
        default=None, description="The most a session may ask for. Default: default_servers."
    )
    tags: Words = Field(default=(), description="Servers that bear any of these tags are part of default_servers.")
    profile: Name | None = Field(default=None, description="A profile to take servers and lists from.")
    profile_overrides: ProfileOverrides = Field(default_factory=ProfileOverrides, description="Narrows the profile.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools; without it all.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")
    mode: Literal["direct", "facade", "both", "search"] = Field(
        default="direct",
        description="The servers' tools, the facade tools, both, or three search tools for big catalogs.",
    )
    names: Literal["prefixed", "plain"] = Field(
        default="prefixed", description="server__tool, or the tools' own names."
    )
    helper_tools: Literal["auto", "always", "never"] = Field(
        default="auto", description="Whether tools such as get_task are listed: auto lists them where they help."
    )
    require: ScopeRequirement | None = Field(default=None, description="What callers need to use this scope.")
