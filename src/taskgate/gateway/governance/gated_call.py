"""One call as the gates evaluate it: the caller, the target, and the exact bytes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from taskgate.core import wire
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.core.patterns import PatternKind
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GatedCall:
    """`arguments` are the exact bytes that would be sent."""

    principal: str
    roles: frozenset[str]
    scope: str
    server: str
    name: str
    arguments: bytes
    definition_digest: str = ""
    kind: PatternKind = PatternKind.TOOL
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    scope_revision: str = ""
    facts: CredentialFacts | None = None
    from_script: bool = False
    script_digest: str = ""


def gated_tool_call(
    caller: Caller, tool: ToolRef, arguments: bytes, *, from_script: bool = False, script_digest: str = ""
) -> GatedCall:
    """A call of a tool in the caller's view, or of an unlisted tool that the view permits."""
    return GatedCall(
        caller.principal,
        caller.roles,
        caller.scope,
        tool.server,
        tool.name,
        arguments,
        tool.definition_digest,
        PatternKind.TOOL,
        schema_of(tool.entry),
        tool.revision,
        caller.facts,
        from_script,
        script_digest,
    )


def gated_reading(
    caller: Caller, kind: PatternKind, server: str, name: str, arguments: bytes | None, *, revision: str
) -> GatedCall:
    """A request for a resource or a prompt. Only prompts have arguments; a resource is evaluated by its URI."""
    content = arguments if arguments is not None and kind is PatternKind.PROMPT else wire.encode({"name": name})
    return GatedCall(
        caller.principal,
        caller.roles,
        caller.scope,
        server,
        name,
        content,
        kind=kind,
        scope_revision=revision,
        facts=caller.facts,
    )
