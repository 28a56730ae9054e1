"""`completion/complete`: suggest values for an argument.

The request is sent to the server of the prompt or resource template first. The gateway adds values from the tool's schema, listed
resources, names, and values that this caller used before. `ref/tool` is an extension of the gateway, because MCP has no completion
for tools; `ref/command` is a prompt or else a tool. With an empty name or URI, the names or URIs themselves are completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.addresses import own_address
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.completion.memory import CompletionPlace
from taskgate.core.completion.ranking import CandidateIndex, Completion, merge_with_upstream
from taskgate.core.completion.ranking import complete as rank
from taskgate.core.completion.schema_values import values_from_schema
from taskgate.core.errors import CallerError
from taskgate.core.generations.error_codes import code_of
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import mark_complete as as_complete
from taskgate.core.governance.decision import Denied
from taskgate.core.patterns import PatternKind
from taskgate.core.uri_template import UriTemplate
from taskgate.core.wire import Raw
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.readings import permitted
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.catalog.completions import Completions
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.requests.caller_keys import memory_key
from taskgate.gateway.requests.request import Request
from taskgate.late_imports import FUZZY, load
from taskgate.ports.upstream_replies import RelayedError

PROMPT, RESOURCE, TOOL, COMMAND = "ref/prompt", "ref/resource", "ref/tool", "ref/command"
KINDS: Final = (PROMPT, RESOURCE, TOOL, COMMAND)
_NOT_OFFERED: Final = -32601
_UNKNOWN_TO_SERVER: Final = frozenset({-32602, -32002})
"""The error codes of servers for an unknown reference."""
UNKNOWN_REFERENCE: Final = "unknown_reference"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*")
_NO_CANDIDATES: Final = CandidateIndex.build(())


class CompletionQuery(msgspec.Struct, frozen=True):
    """A valid request. `given` are the arguments so far."""

    kind: str
    name: str
    argument: str
    typed: str
    given: frozenset[tuple[str, str]] = frozenset()


class Source(msgspec.Struct, frozen=True):
    """Where suggestions come from: the gateway's candidates, values that the caller used, and the server if it supports
    completion.
    """

    index: CandidateIndex
    place: CompletionPlace | None = None
    owner: str | None = None
    owner_name: str | None = None
    is_listed: bool = True
    """False for a tool that its server has not listed, perhaps not yet."""
    is_known: bool = True
    """False for a reference that its only possible server does not list: the server decides whether it exists."""


def read_query(params: Mapping[str, Any]) -> CompletionQuery:
    ref, argument = params.get("ref"), params.get("argument")
    if type(ref) is not dict or type(argument) is not dict:
        raise CallerError("invalid_params", 'completion/complete needs "ref" and "argument", both objects.')
    kind = ref.get("type")
    if kind not in KINDS:
        raise CallerError("unknown_reference", f'"ref.type" must be one of {", ".join(KINDS)}.')
    name = ref.get("uri" if kind == RESOURCE else "name")
    if type(name) is not str:
        raise CallerError("invalid_params", f'"ref" needs "{"uri" if kind == RESOURCE else "name"}", a string.')
    if kind == RESOURCE and name and not _SCHEME.fullmatch(name):
        raise CallerError("invalid_uri", '"ref.uri" is not a URI or a URI template.')
    which, typed = argument.get("name"), argument.get("value")
    if type(which) is not str or type(typed) is not str:
        raise CallerError("invalid_params", '"argument" needs "name" and "value", both strings.')
    return CompletionQuery(
        kind=str(kind), name=name, argument=which, typed=typed, given=_context_arguments(params.get("context"))
    )


def _context_arguments(given: Any) -> frozenset[tuple[str, str]]:
    if given is None:
        return frozenset()
    arguments = given.get("arguments", {}) if type(given) is dict else None
    if type(arguments) is not dict:
        raise CallerError("invalid_params", '"context" must be an object with "arguments", an object of strings.')
    return frozenset((key, value) for key, value in arguments.items() if type(value) is str)


def _able(view: View, server: str) -> str | None:
    return server if "completions" in view.capabilities.get(server, {}) else None


def _takes_uri(schema: Any, argument: str) -> bool:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    described = properties.get(argument) if isinstance(properties, Mapping) else None
    return argument == "uri" or (isinstance(described, Mapping) and described.get("format") in ("uri", "iri"))


def _not_offered() -> CallerError:
    return CallerError("unknown_reference", "The ref names no prompt, tool or resource template that is offered here.")


def _has_values(answer: bytes) -> bool:
    completion = wire.parse_strictly(bytes(wire.members_of(answer).get("completion", Raw(b"{}"))))
    return type(completion) is dict and bool(completion.get("values"))


class Completing(msgspec.Struct, frozen=True):
    lookup: Lookup
    sending: Sending
    completions: Completions

    async def complete(self, request: Request) -> bytes:
        query = read_query(request.params)
        await load(*FUZZY)
        view = await self.lookup.view(request)
        memory = memory_key(request)
        revisions = (self.lookup.plan.value.revision, self.lookup.catalogs.revision.number)
        key = (memory, request.generation, revisions, request.caller.scope, request.narrowing, query)
        recent = self.completions.recent(key)
        if recent is not None:
            return recent
        source = self._source(request, view, query)
        if source is None or not source.is_listed:
            again = self.lookup.find_uri(request, view) if query.kind == RESOURCE else None
            fresh = await (again or self.lookup.find_name(request, view, query.name))
            source = (self._source(request, fresh, query) if fresh is not None else None) or source
        if source is None:
            raise _not_offered()
        used = self.completions.used(memory, source.place) if source.place is not None else {}
        ours = rank(source.index, query.typed, used, now=clock.monotonic(), given=dict(query.given))
        answer = await self._with_owner(request, source, ours)
        if memory:
            self.completions.keep(key, answer)
        return answer

    def _source(self, request: Request, view: View, query: CompletionQuery) -> Source | None:
        if not query.name:
            return self._names(view, query)
        if query.kind in (PROMPT, COMMAND):
            prompt = view.prompt(query.name) if query.kind == PROMPT else view.prompts.get(query.name)
            if prompt is not None and permitted(view, prompt.server, prompt.name, PatternKind.PROMPT):
                place = CompletionPlace(prompt.server, prompt.name, query.argument)
                owner, is_known = _able(view, prompt.server), prompt.entry is not None
                if is_known or owner is not None:
                    return Source(_NO_CANDIDATES, place, owner, prompt.name, is_known=is_known)
        if query.kind in (TOOL, COMMAND):
            tool = view.tool(query.name)
            if tool is not None and not isinstance(tool.decision, Denied):
                return self._of_tool(view, query, tool)
        if query.kind == RESOURCE:
            template = view.template(query.name)
            server = template[1].server if template is not None else self._unlisted_owner(request, view, query.name)
            if server is not None and permitted(view, server, query.name, PatternKind.RESOURCE):
                place = CompletionPlace(server, query.name, query.argument)
                index = self._of_template(view, *template, query.argument) if template is not None else _NO_CANDIDATES
                is_known = template is not None or query.name in view.resources
                return Source(index, place, _able(view, server), is_known=is_known)
        return None

    def _unlisted_owner(self, request: Request, view: View, uri: str) -> str | None:
        """The server that completes a template or URI that is not listed as a template: one that supports completion."""
        found = view.address_of(uri, self.sending.handed_out_by(request, uri))
        return found.server if found is not None and (uri in view.resources or _able(view, found.server)) else None

    def _names(self, view: View, query: CompletionQuery) -> Source:
        def names() -> Iterable[str]:
            if query.kind in (PROMPT, COMMAND):
                yield from view.prompts
            if query.kind in (TOOL, COMMAND):
                yield from (name for name, tool in view.tools.items() if not isinstance(tool.decision, Denied))
            if query.kind == RESOURCE:
                yield from view.resources

        return Source(self.completions.index(("names", query.kind, id(view)), view, names))

    def _of_tool(self, view: View, query: CompletionQuery, tool: ToolRef) -> Source:
        entry = tool.entry
        place = CompletionPlace(tool.server, tool.name, query.argument)
        if entry is None:
            return Source(_NO_CANDIDATES, place, is_listed=False)
        schema = entry.input_schema

        def values() -> Iterable[str]:
            yield from values_from_schema(schema, query.argument)
            if _takes_uri(schema, query.argument):
                yield from (uri for uri, found in view.resources.items() if found.server == tool.server)

        source = view if _takes_uri(schema, query.argument) else entry
        return Source(self.completions.index(place, source, values), place)

    def _of_template(self, view: View, template: UriTemplate, entry: CatalogEntry, argument: str) -> CandidateIndex:
        """The values at this place of the template in the listed resources."""

        def values() -> Iterable[str]:
            listed = (uri for uri, found in view.resources.items() if found.server == entry.server)
            return template.values_in(argument, listed)

        return self.completions.index(("template", entry.server, entry.name, argument), view, values)

    async def _with_owner(self, request: Request, source: Source, ours: Completion) -> bytes:
        theirs = await self._ask_owner(request, source) if source.owner is not None else None
        if theirs is None:
            answer = wire.encode({"completion": ours.as_result()})
            return as_complete(answer) if request.generation is Generation.STATELESS else answer
        if not ours.values:
            return theirs
        members = wire.members_of(theirs)
        completion = wire.parse_strictly(bytes(members.get("completion", Raw(b"{}"))))
        completion = completion if type(completion) is dict else {}
        listed = completion.get("values")
        values = [value for value in listed if type(value) is str] if type(listed) is list else []
        total = completion.get("total")
        merged = merge_with_upstream(
            ours, values, total if type(total) is int else None, completion.get("hasMore") is True
        )
        members["completion"] = wire.raw({**completion, **merged.as_result()})
        return wire.join(members)

    async def _ask_owner(self, request: Request, source: Source) -> bytes | None:
        """Request suggestions from the server. Return None if it does not support completion."""
        assert source.owner is not None
        params = request.members()
        if source.owner_name is not None:
            ref = wire.members_of(params["ref"])
            ref["type"], ref["name"] = wire.raw(PROMPT), wire.raw(source.owner_name)
            params["ref"] = Raw(wire.join(ref))
        elif "uri" in (ref := wire.members_of(params["ref"])):
            uri = wire.parse_strictly(bytes(ref["uri"]))
            params["ref"] = Raw(wire.join({**ref, "uri": wire.raw(own_address(source.owner, uri))}))
        call = self.sending.prepared(request, source.owner, "completion/complete", params, "")
        legacy = self._has_legacy_numbers(request)
        try:
            answer = await self.sending.carry(request, source.owner, call)
        except RelayedError as error:
            if not source.is_known and legacy:
                raise self._unknown_reference(request, error) from None
            if error.code == _NOT_OFFERED:
                return None
            if not source.is_known and error.code in _UNKNOWN_TO_SERVER:
                raise self._unknown_reference(request, error) from None
            raise
        if not source.is_known and legacy and not _has_values(answer):
            # Many servers answer for an unknown reference as for one without values. The older servers refuse it.
            raise _not_offered()
        return answer

    def _has_legacy_numbers(self, request: Request) -> bool:
        return self.lookup.plan.value.features.legacy_numbers and request.generation is Generation.STATEFUL

    def _unknown_reference(self, request: Request, error: RelayedError) -> RelayedError:
        """The error for a reference that the server does not know either: the server's error, with the gateway's error type and
        legacy code.
        """
        code, members = code_of(UNKNOWN_REFERENCE), wire.members_of(error.raw)
        data = wire.parse_strictly(bytes(members.get("data", Raw(b"{}"))))
        if type(data) is dict:
            members["data"] = wire.raw({"error_type": UNKNOWN_REFERENCE, "legacy_code": code.legacy, **data})
        if self._has_legacy_numbers(request):
            members["code"] = wire.raw(code.legacy)
        return RelayedError(wire.join(members), error.code)
