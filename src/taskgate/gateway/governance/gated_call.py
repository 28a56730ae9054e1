"""One call as the gates evaluate it: the caller, the target, and the exact bytes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.core.patterns import PatternKind
from taskgate.core.risk import Risk
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.request import Request


class GatedCall(msgspec.Struct, frozen=True):
    """`arguments` are the exact bytes that would be sent."""

    principal: str
    roles: frozenset[str]
    scope: str
    server: str
    name: str
    arguments: bytes
    definition_digest: str = ""
    kind: PatternKind = PatternKind.TOOL
    input_schema: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scope_revision: str = ""
    facts: CredentialFacts | None = None
    from_script: bool = False
    script_digest: str = ""
    client: str | None = None
    """The name of the client program; None if it is not known."""
    generation: Generation | None = None
    risk: Risk | None = None
    """Of a tool; None if it is not known."""

    def without_arguments(self) -> GatedCall:
        return replace(self, arguments=b"")


def gated_tool_call(
    caller: Caller, tool: ToolRef, arguments: bytes, *, from_script: bool = False, script_digest: str = ""
) -> GatedCall:
    """A call of a tool in the caller's view, or of an unlisted tool that the view permits."""
    return GatedCall(
        principal=caller.principal,
        roles=caller.roles,
        scope=caller.scope,
        server=tool.server,
        name=tool.name,
        arguments=arguments,
        definition_digest=tool.definition_digest,
        kind=PatternKind.TOOL,
        input_schema=schema_of(tool.entry),
        scope_revision=tool.revision,
        facts=caller.facts,
        from_script=from_script,
        script_digest=script_digest,
        risk=tool.risk,
    )


def with_request(call: GatedCall, request: Request) -> GatedCall:
    """Add what is known from the request."""
    return replace(call, client=request.client_name, generation=request.generation)


def gated_reading(
    caller: Caller, kind: PatternKind, server: str, name: str, arguments: bytes | None, *, revision: str
) -> GatedCall:
    """A request for a resource or a prompt. Only prompts have arguments; a resource is evaluated by its URI."""
    content = arguments if arguments is not None and kind is PatternKind.PROMPT else wire.encode({"name": name})
    return GatedCall(
        principal=caller.principal,
        roles=caller.roles,
        scope=caller.scope,
        server=server,
        name=name,
        arguments=content,
        kind=kind,
        scope_revision=revision,
        facts=caller.facts,
    )
