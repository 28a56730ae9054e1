"""`completion/complete`: suggest values for an argument.

The server of the prompt or resource template is asked first. The gateway adds values from the tool's schema, listed resources,
names, and values that this caller used before. `ref/tool` is an extension of the gateway, because MCP has no completion for
tools; `ref/command` is a prompt or else a tool. With an empty name or URI, the names or URIs themselves are completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from taskgate.core.generations.stateless import complete as as_complete
from taskgate.core.governance.decision import Denied
from taskgate.core.patterns import PatternKind
from taskgate.core.uri_template import UriTemplate
from taskgate.core.wire import Raw
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.readings import permitted
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.catalog.validate import Completions
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.requests.caller_keys import memory_key
from taskgate.gateway.requests.request import Request
from taskgate.late_imports import FUZZY, load
from taskgate.ports.upstream import RelayedError

PROMPT, RESOURCE, TOOL, COMMAND = "ref/prompt", "ref/resource", "ref/tool", "ref/command"
KINDS: Final = (PROMPT, RESOURCE, TOOL, COMMAND)
_NOT_OFFERED: Final = -32601
_NO_SUCH_THING: Final = frozenset({-32602, -32002})
"""How servers answer a reference that they do not have."""
UNKNOWN_REFERENCE: Final = "unknown_reference"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*")
_NO_CANDIDATES: Final = CandidateIndex.build(())


@dataclass(frozen=True, slots=True)
class CompletionAsked:
    """One well-formed question. `given` are the arguments filled in so far."""

    kind: str
    name: str
    argument: str
    typed: str
    given: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Source:
    """Where suggestions come from: our own candidates, the caller's memory, and the owner to ask, if it can be asked."""

    index: CandidateIndex
    place: CompletionPlace | None = None
    owner: str | None = None
    owner_name: str | None = None
    is_listed: bool = True
    """False for a tool that its server has not listed, perhaps not yet."""
    is_known: bool = True
    """False for a reference that its only possible owner does not list: the owner decides whether it exists."""


def read_asked(params: Mapping[str, Any]) -> CompletionAsked:
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
    return CompletionAsked(str(kind), name, which, typed, _given(params.get("context")))


def _given(given: Any) -> frozenset[tuple[str, str]]:
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


@dataclass(frozen=True, slots=True)
class Completing:
    lookup: Lookup
    sending: Sending
    completions: Completions

    async def complete(self, request: Request) -> bytes:
        asked = read_asked(request.params)
        await load(*FUZZY)
        view = await self.lookup.view(request)
        remembered_as = memory_key(request)
        revisions = (self.lookup.plan.value.revision, self.lookup.catalogs.revision.number)
        key = (remembered_as, request.generation, revisions, request.caller.scope, request.narrowing, asked)
        recent = self.completions.recent(key)
        if recent is not None:
            return recent
        source = self._source(request, view, asked)
        if source is None or not source.is_listed:
            again = self.lookup.look_for_uri(request, view) if asked.kind == RESOURCE else None
            fresh = await (again or self.lookup.look_for_name(request, view, asked.name))
            source = (self._source(request, fresh, asked) if fresh is not None else None) or source
        if source is None:
            raise CallerError(
                "unknown_reference", "The ref names no prompt, tool or resource template that is offered here."
            )
        used = self.completions.used(remembered_as, source.place) if source.place is not None else {}
        ours = rank(source.index, asked.typed, used, now=clock.monotonic(), given=dict(asked.given))
        answer = await self._with_owner(request, source, ours)
        if remembered_as:
            self.completions.keep(key, answer)
        return answer

    def _source(self, request: Request, view: View, asked: CompletionAsked) -> Source | None:
        if not asked.name:
            return self._names(view, asked)
        if asked.kind in (PROMPT, COMMAND):
            prompt = view.prompt(asked.name) if asked.kind == PROMPT else view.prompts.get(asked.name)
            if prompt is not None and permitted(view, prompt.server, prompt.name, PatternKind.PROMPT):
                place = CompletionPlace(prompt.server, prompt.name, asked.argument)
                owner, is_known = _able(view, prompt.server), prompt.entry is not None
                if is_known or owner is not None:
                    return Source(_NO_CANDIDATES, place, owner, prompt.name, is_known=is_known)
        if asked.kind in (TOOL, COMMAND):
            tool = view.tool(asked.name)
            if tool is not None and not isinstance(tool.decision, Denied):
                return self._of_tool(view, asked, tool)
        if asked.kind == RESOURCE:
            template = view.template(asked.name)
            server = template[1].server if template is not None else self._unlisted_owner(request, view, asked.name)
            if server is not None and permitted(view, server, asked.name, PatternKind.RESOURCE):
                place = CompletionPlace(server, asked.name, asked.argument)
                index = self._of_template(view, *template, asked.argument) if template is not None else _NO_CANDIDATES
                is_known = template is not None or asked.name in view.resources
                return Source(index, place, _able(view, server), is_known=is_known)
        return None

    def _unlisted_owner(self, request: Request, view: View, uri: str) -> str | None:
        """Whom to ask about a template or URI that is not listed as a template: one that answers such questions."""
        found = view.address_of(uri, self.sending.handed_out_by(request, uri))
        return found.server if found is not None and (uri in view.resources or _able(view, found.server)) else None

    def _names(self, view: View, asked: CompletionAsked) -> Source:
        def names() -> Iterable[str]:
            if asked.kind in (PROMPT, COMMAND):
                yield from view.prompts
            if asked.kind in (TOOL, COMMAND):
                yield from (name for name, tool in view.tools.items() if not isinstance(tool.decision, Denied))
            if asked.kind == RESOURCE:
                yield from view.resources

        return Source(self.completions.index(("names", asked.kind, id(view)), view, names))

    def _of_tool(self, view: View, asked: CompletionAsked, tool: ToolRef) -> Source:
        entry = tool.entry
        place = CompletionPlace(tool.server, tool.name, asked.argument)
        if entry is None:
            return Source(_NO_CANDIDATES, place, is_listed=False)
        schema = entry.input_schema

        def values() -> Iterable[str]:
            yield from values_from_schema(schema, asked.argument)
            if _takes_uri(schema, asked.argument):
                yield from (uri for uri, found in view.resources.items() if found.server == tool.server)

        source = view if _takes_uri(schema, asked.argument) else entry
        return Source(self.completions.index(place, source, values), place)

    def _of_template(self, view: View, template: UriTemplate, entry: CatalogEntry, argument: str) -> CandidateIndex:
        """What stands in this place of the template in the resources that are listed."""

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
        said = wire.parse_strictly(bytes(members.get("completion", Raw(b"{}"))))
        said = said if type(said) is dict else {}
        listed = said.get("values")
        values = [value for value in listed if type(value) is str] if type(listed) is list else []
        total = said.get("total")
        merged = merge_with_upstream(ours, values, total if type(total) is int else None, said.get("hasMore") is True)
        members["completion"] = wire.raw({**said, **merged.as_result()})
        return wire.join(members)

    async def _ask_owner(self, request: Request, source: Source) -> bytes | None:
        """What the owner suggests; None if it turns out that it does not do that."""
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
        try:
            return await self.sending.carry(request, source.owner, call)
        except RelayedError as error:
            if error.code == _NOT_OFFERED:
                return None
            if not source.is_known and error.code in _NO_SUCH_THING:
                raise self._unknown_reference(request, error) from None
            raise

    def _unknown_reference(self, request: Request, error: RelayedError) -> RelayedError:
        """The owner does not have it either: its own error, with the name and the older number that ours has."""
        code, members = code_of(UNKNOWN_REFERENCE), wire.members_of(error.raw)
        told = wire.parse_strictly(bytes(members.get("data", Raw(b"{}"))))
        if type(told) is dict:
            members["data"] = wire.raw({"error_type": UNKNOWN_REFERENCE, "legacy_code": code.legacy, **told})
        if self.lookup.plan.value.features.legacy_numbers and request.generation is Generation.STATEFUL:
            members["code"] = wire.raw(code.legacy)
        return RelayedError(wire.join(members), error.code)
