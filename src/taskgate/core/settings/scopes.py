"""The `scopes` and `profiles` sections: which servers and tools each scope exposes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from taskgate.core.settings.identity import ScopeRequirement
from taskgate.core.settings.section import Section, read_by
from taskgate.core.settings.values import Name, Patterns, Strings, on_off


class ScopeProfile(Section):
    """A named set of servers and tools that several scopes can use.

    `servers` and `tags` are combined; the lists then restrict the result.
    """

    description: Annotated[str, Meta(description="Description for operators.")] = ""
    extends: Annotated[Name | None, Meta(description="Profile to inherit from. The lists of both apply.")] = None
    servers: Annotated[Strings, Meta(description='Server ids; `"*"` selects all.')] = ()
    tags: Annotated[Strings, Meta(description="Select servers with any of these tags.")] = ()
    exclude_servers: Annotated[Strings, Meta(description="Exclude these servers, however they were selected.")] = ()
    tool_allowlist: Annotated[Patterns | None, Meta(description="Only these tools (globs). Unset: all.")] = None
    tool_denylist: Annotated[Patterns, Meta(description="Exclude these tools (globs).")] = ()


class ProfileOverrides(Section):
    """Further restrictions of the profile for this scope only."""

    servers: Annotated[Strings | None, Meta(description="Only these servers of the profile.")] = None
    exclude_servers: Annotated[Strings, Meta(description="Exclude these servers.")] = ()
    tool_allowlist: Annotated[Patterns | None, Meta(description="Only these tools (globs).")] = None
    tool_denylist: Annotated[Patterns, Meta(description="Exclude these tools (globs).")] = ()


class Scope(Section):
    """A set of tools that is served at `/mcp/NAME`."""

    enabled: Annotated[bool, Meta(description="A disabled scope returns HTTP 404.")] = True
    default_servers: Annotated[
        Strings | None,
        Meta(
            description='Servers of a session that requests none; `"*"` selects all. Default: those of `profile` and `tags`.'
        ),
    ] = None
    allowed_servers: Annotated[
        Strings | None, Meta(description="Servers that a session may request. Default: `default_servers`.")
    ] = None
    tags: Annotated[Strings, Meta(description="Servers with any of these tags are added to `default_servers`.")] = ()
    profile: Annotated[Name | None, Meta(description="Profile that provides servers and lists.")] = None
    profile_overrides: Annotated[ProfileOverrides, Meta(description="Further restrictions of the profile.")] = (
        ProfileOverrides()
    )
    tool_allowlist: Annotated[Patterns | None, Meta(description="Only these tools (globs). Unset: all.")] = None
    tool_denylist: Annotated[Patterns, Meta(description="Exclude these tools (globs).")] = ()
    mode: Annotated[
        Literal["direct", "facade", "both", "search"],
        Meta(
            description="`direct`: the servers' tools; `facade`: the facade tools; `both`; or `search`: three search tools, "
            "for large catalogs."
        ),
    ] = "direct"
    names: Annotated[
        Literal["prefixed", "plain"], Meta(description="`prefixed`: `server__tool`; `plain`: the tools' own names.")
    ] = "prefixed"
    helper_tools: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether the gateway's helper tools such as `get_task` are listed. `auto` lists them for callers "
            "that need them."
        ),
    ] = "auto"
    scripts: Annotated[
        Literal["on", "off"],
        read_by(on_off),
        Meta(
            description="Whether callers may run scripts: `run_script` and `describe_tools`. Needs `pip install "
            "'taskgate[scripts]'`."
        ),
    ] = "off"
    require: Annotated[ScopeRequirement | None, Meta(description="What callers need to use this scope.")] = None
