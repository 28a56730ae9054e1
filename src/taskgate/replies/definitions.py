"""Definitions of tools that differ from their pins, and accepted ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from taskgate.core.risk import Risk
from taskgate.replies.differences import ValueChanges
from taskgate.replies.fields import Time, about


class Finding(Struct, frozen=True, kw_only=True):
    """Something suspicious in a definition."""

    kind: Annotated[str, about("kind of finding")]
    where: Annotated[str, about("place in the definition")]
    what: Annotated[str, about("what was found")]


class ChangedDefinition(Struct, frozen=True, kw_only=True):
    """A definition that differs from its pin."""

    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool; `resource:URI` or `skill:URI` for an interface or a skill")]
    kind: Annotated[str, about("`tool`, `interface` or `skill`")]
    digest: Annotated[str, about("digest of the current definition, for `POST /api/v1/pins/accept`")]
    pinned: Annotated[str | None, about("digest of the accepted definition; null if there is none")]
    quarantined: Annotated[bool, about("whether it is hidden from callers until it is accepted")]
    flags: Annotated[Sequence[Finding], about("suspicious content")]
    changes: Annotated[ValueChanges, about("differences between two JSON values")]


class AcceptedDefinition(Struct, frozen=True, kw_only=True):
    """A definition that was accepted."""

    digest: Annotated[str, about("digest of the definition")]
    at: Annotated[Time, about("time at which it was accepted")]
    by: Annotated[str, about("person who accepted it; empty if it was pinned on first use")]
    changes: Annotated[ValueChanges | None, about("differences between two JSON values")]


class RiskStated(Struct, frozen=True, kw_only=True):
    """The reply to a statement about the risk of a tool."""

    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool")]
    digest: Annotated[str, about("digest of the definition that it is bound to")]
    risk: Annotated[Risk, about("the risk")]
    stated_by: Annotated[str, about("name of the person")]


class DefinitionAccepted(Struct, frozen=True, kw_only=True):
    """The reply to the acceptance of a definition."""

    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool")]
    digest: Annotated[str, about("digest of the accepted definition")]
    accepted_by: Annotated[str, about("name of the person")]
