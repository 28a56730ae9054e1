"""Scopes and their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from taskgate.core.scoping.scope import ScopeMode
from taskgate.replies.fields import Time, about


class ScopeRow(Struct, frozen=True, kw_only=True):
    """A scope."""

    scope: Annotated[str, about("name of the scope")]
    address: Annotated[str, about("path of its endpoint")]
    mode: Annotated[ScopeMode, about("what it lists")]
    names: Annotated[str, about("how names are shown")]
    servers: Annotated[Sequence[str], about("servers in it")]
    excluded: Annotated[Mapping[str, Any], about("reason by excluded server")]
    problems: Annotated[Sequence[str], about("problems of its configuration")]
    temporary: Annotated[bool, about("whether it was created at run time")]
    label: Annotated[str | UnsetType, about("of a temporary scope: label")] = UNSET
    created_by: Annotated[str | UnsetType, about("of a temporary scope: person or program that created it")] = UNSET
    created_at: Annotated[Time | UnsetType, about("of a temporary scope: time of its creation")] = UNSET
    expires_at: Annotated[Time | UnsetType, about("of a temporary scope: its end")] = UNSET
    config: Annotated[
        Mapping[str, Any] | UnsetType, about("of a temporary scope: configuration that it was created from")
    ] = UNSET


class MeasuredScope(ScopeRow, frozen=True, kw_only=True):
    """A scope with the size of its tool list."""

    tool_count: Annotated[int, about("number of tools")]
    left_out_count: Annotated[int, about("number of excluded tools and servers")]
    list_bytes: Annotated[int, about("size of the tool list in bytes")]
    list_tokens: Annotated[int, about("estimated size of the tool list in tokens of a model")]


class Scopes(Struct, frozen=True, kw_only=True):
    """The scopes in force."""

    scopes: Sequence[MeasuredScope]


class ScopeCreated(ScopeRow, frozen=True, kw_only=True):
    """A temporary scope that was created."""

    url: Annotated[str, about("address for MCP clients")]
    token: Annotated[str, about("bearer token of the scope; it is not shown again")]

    def __repr__(self) -> str:
        """Without the token."""
        return f"ScopeCreated(scope={self.scope!r})"


class ScopeEnded(Struct, frozen=True, kw_only=True):
    """The reply to the end of a temporary scope."""

    scope: Annotated[str, about("name of the scope")]
    ended_by: Annotated[str, about("name of the person")]


class ScopeTool(Struct, frozen=True, kw_only=True):
    """A tool of a scope."""

    name: Annotated[str, about("name that callers see")]
    server: Annotated[str, about("name of the server")]
    rule: Annotated[str, about("rule that applies")]


class StubsSize(Struct, frozen=True, kw_only=True):
    """The size of the tools of a scope as scripts get them."""

    tools: Annotated[int, about("number of tools that scripts may call")]
    bytes: Annotated[int, about("size of their signatures in bytes")]
    tokens: Annotated[int, about("estimated size in tokens of a model")]


class LeftOut(Struct, frozen=True, kw_only=True):
    """A server or tool that a scope does not have."""

    what: Annotated[str, about("`SERVER:TOOL` or a server")]
    why: Annotated[str, about("reason")]


class ScopeTools(Struct, frozen=True, kw_only=True):
    """The tools of a scope."""

    scope: Annotated[str, about("name of the scope")]
    address: Annotated[str, about("path of its endpoint")]
    mode: Annotated[ScopeMode, about("what it lists")]
    servers: Annotated[Sequence[str], about("servers in it")]
    tools: Sequence[ScopeTool]
    bytes: Annotated[int, about("size of the tool list in bytes")]
    tokens: Annotated[int, about("estimated size in tokens of a model")]
    script_stubs: Annotated[
        StubsSize | None,
        about("the tools as `describe_tools` returns them for scripts; null if the scope has no scripts"),
    ]
    left_out: Annotated[Sequence[LeftOut], about("what is excluded")]
