"""Which patterns of a configuration match none of the names that servers list, and what was probably meant.

Only what is certain is reported: a pattern is examined when the lists of all servers that it can apply to are known. Resources of a
server with templates are not: it accepts more URIs than it lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.facts.schema_paths import declared_names, may_have
from taskgate.core.facts.table import ARGUMENT_NAME
from taskgate.core.globs import Glob, GlobShape, PatternError
from taskgate.core.governance.pattern_mistakes import is_negated, repairs, taken_apart
from taskgate.core.patterns import Pattern, PatternKind
from taskgate.core.resource_uri import normal_form
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.text.lookalikes import skeleton
from taskgate.core.text.similar_names import similar_names

Listed = Mapping[str, Mapping[PatternKind, Sequence[str]]]
"""The names of each server, by kind. A kind that is not known is missing; one that the server does not have is empty."""

MAX_COMPARED: Final = 1_000
"""Names that are compared for similarity; comparing ten times as many takes a noticeable pause."""
LONGEST_COMPARED: Final = 100
MAX_SCHEMAS: Final = 200
"""Tools of which the schemas are parsed for the arguments of one rule."""
_SIMILAR: Final = 0.7
_ARGUMENT: Final = f"{ARGUMENT_NAME}."
_OWN_NAMES: Final = tuple(name.value for name in OwnToolName)
_WORD_END: Final = re.compile(r"[_./-]")


class PatternUse(msgspec.Struct, frozen=True):
    """A pattern in a configuration: its place, and the server that it is limited to; empty for none."""

    place: str
    text: str
    server: str = ""
    paths: tuple[tuple[str, ...], ...] = ()
    """The arguments that conditions of the rule depend on."""


class UnmatchedPattern(msgspec.Struct, frozen=True):
    """A pattern that matches none of `names` known names. `instead` matches some; it is empty if nothing similar does."""

    place: str
    pattern: str
    kind: PatternKind
    names: int
    instead: tuple[str, ...] = ()
    argument: str = ""
    """The path of an argument that none of the matching tools has. Then the pattern matches `names` tools."""

    @property
    def message(self) -> str:
        """What is wrong, as the rest of a sentence that begins with the place and the pattern."""
        if self.argument:
            has = "the tool that it matches does not have" if self.names == 1 else f"none of {self.names} tools has"
            found = f"depends on argument.{self.argument}, which {has}"
        else:
            found = f"matches none of {self.names} {self.kind}{'' if self.names == 1 else 's'}"
        meant = " and ".join(f"`{each}`" for each in self.instead)
        return f"{found}; did you mean {meant}" if meant else found

    def __str__(self) -> str:
        return f"{self.place} `{self.pattern}` {self.message}"


def patterns_in(root: GatewayFile) -> tuple[PatternUse, ...]:
    """Return every pattern over names of servers in a configuration, except those that match everything."""
    return tuple(use for use in _every_pattern(root) if use.paths or not _matches_everything(use.text))


def _matches_everything(text: str) -> bool:
    # Compiling is left to the work in the background, except where it may be so.
    return text.rstrip("*")[-1:] in ("", ":") and Pattern.compile(text).name.everything


def _every_pattern(root: GatewayFile) -> Iterator[PatternUse]:
    for number, rule in enumerate(root.governance.rules):
        paths = tuple(tuple(name.split(".")[1:]) for name in rule.when if name.startswith(_ARGUMENT))
        yield PatternUse(f"rules[{number}]", rule.match, rule.server or "", paths)
    yield from _uses("governance.force_required", root.governance.force_required)
    for name, server in root.servers.items():
        yield from _uses(f"servers.{name}.expose.tools", server.expose.tools, name)
        yield from _uses(f"servers.{name}.allowed_tools", server.allowed_tools, name)
        for text in server.approval_policy.tools:
            yield PatternUse(f"servers.{name}.approval_policy.tools", text, name)
    for name, profile in root.profiles.items():
        yield from _uses(f"profiles.{name}.tool_allowlist", profile.tool_allowlist)
        yield from _uses(f"profiles.{name}.tool_denylist", profile.tool_denylist)
    for name, scope in root.scopes.items():
        for place, lists in ((f"scopes.{name}", scope), (f"scopes.{name}.profile_overrides", scope.profile_overrides)):
            yield from _uses(f"{place}.tool_allowlist", lists.tool_allowlist)
            yield from _uses(f"{place}.tool_denylist", lists.tool_denylist)


def _uses(key: str, texts: Iterable[str] | None, server: str = "") -> Iterator[PatternUse]:
    for number, text in enumerate(texts or ()):
        yield PatternUse(f"{key}[{number}]", text, server)


SchemaOf = Callable[[str, str], Any]
"""Returns the input schema of a listed tool."""


class _Names(msgspec.Struct, frozen=True):
    """The names that patterns with one part before the name are compared with."""

    known: bool
    names: tuple[str, ...] = ()
    count: int = 0
    """Without the gateway's own tools, which come last, unless these are meant."""
    together: str = ""
    """All names in one text: a pattern whose longest literal part is not in it matches none."""
    exact: frozenset[str] = frozenset()

    def any_matches(self, glob: Glob) -> bool:
        if glob.shape is GlobShape.EXACT:
            return glob.text in self.exact
        return glob.needle in self.together and any(map(glob.matches, self.names))


_UNKNOWN: Final = _Names(known=False)


class NameIndex:
    """The listed names of all servers, for many patterns."""

    def __init__(self, listed: Listed, schema_of: SchemaOf | None = None) -> None:
        self._listed = listed
        self._schema_of = schema_of
        self._names: dict[tuple[str, str, PatternKind], _Names] = {}

    def is_known(self, use: PatternUse) -> bool:
        """Whether the lists of all servers that the pattern can apply to are known."""
        return self._names_for(use.server, Pattern.compile(use.text)).known

    def unmatched(self, use: PatternUse, *, suggest: bool = True) -> UnmatchedPattern | None:
        """Return a pattern that certainly matches nothing, otherwise None. Without `suggest`, without what was meant."""
        pattern = Pattern.compile(use.text)
        names = self._names_for(use.server, pattern)
        if not names.known or not names.count:
            return None
        if names.any_matches(pattern.name):
            return self._absent_argument(use, pattern) if use.paths and pattern.kind is PatternKind.TOOL else None
        instead = self._meant(use, pattern, names) if suggest else ()
        return UnmatchedPattern(
            place=use.place, pattern=use.text, kind=pattern.kind, names=names.count, instead=instead
        )

    def _absent_argument(self, use: PatternUse, pattern: Pattern) -> UnmatchedPattern | None:
        """Return the first argument of the rule's conditions that certainly no matching tool has."""
        tools = [
            (server, name)
            for server, kinds in self._listed.items()
            if use.server in ("", server)
            for name in kinds.get(PatternKind.TOOL, ())
            if pattern.matches(server, name)
        ]
        if self._schema_of is None or not 0 < len(tools) <= MAX_SCHEMAS:
            return None
        schemas = [self._schema_of(*tool) for tool in tools]
        for path in use.paths:
            if not any(may_have(schema, path) for schema in schemas):
                known = {name for schema in schemas for name in declared_names(schema, path)}
                instead = tuple(f"argument.{each}" for each in similar_names(path[-1], sorted(known), 1))
                return UnmatchedPattern(
                    place=use.place,
                    pattern=use.text,
                    kind=pattern.kind,
                    names=len(tools),
                    instead=instead,
                    argument=".".join(path),
                )
        return None

    def _names_for(self, server: str, pattern: Pattern) -> _Names:
        key = (server, pattern.server.text, pattern.kind)
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = self._collected(server, pattern.server, pattern.kind)
        return found

    def _collected(self, server: str, servers: Glob, kind: PatternKind) -> _Names:
        matching = [name for name in self._listed if (not server or name == server) and servers.matches(name)]
        if any(kind not in self._listed[name] for name in matching):
            return _UNKNOWN
        names = [name for each in matching for name in self._listed[each][kind]]
        count = len(names)
        if kind is PatternKind.TOOL and not server and servers.matches(OWN_SERVER):
            names += _OWN_NAMES
            count = count if matching else len(names)
        if kind is PatternKind.RESOURCE:
            names = [normal_form(name) for name in names]
        return _Names(known=True, names=tuple(names), count=count, together="\n".join(names), exact=frozenset(names))

    def _meant(self, use: PatternUse, pattern: Pattern, names: _Names) -> tuple[str, ...]:
        """Return what was probably meant, of which every pattern matches something."""
        for patterns in self._candidates(use, pattern, names):
            matching = tuple(each for each in patterns if self._matches_any(each, use.server))
            if matching:
                return matching
        return ()

    def _matches_any(self, text: str, server: str) -> bool:
        try:
            pattern = Pattern.compile(text)
        except PatternError:
            return False
        return self._names_for(server, pattern).any_matches(pattern.name)

    def _candidates(self, use: PatternUse, pattern: Pattern, names: _Names) -> Iterator[tuple[str, ...]]:
        yield from repairs(use.text)
        prefix, name = taken_apart(use.text)
        if not prefix:
            servers = (each for each in self._listed if name.startswith(each))
            yield from ((f"{each}:{name[len(each) :].lstrip('_./-')}",) for each in servers)
        elif pattern.server.literal and not use.server:
            kind = prefix.partition(":")[2]
            yield from ((f"{each}:{kind}{name}",) for each in self._listed)
        if pattern.kind is not PatternKind.RESOURCE and not is_negated(name):
            yield from ((f"{prefix}{each}",) for each in _similar(pattern.name, names.names[: names.count]))


def _similar(glob: Glob, names: Iterable[str]) -> Iterator[str]:
    """Return globs similar to this one that match a name: of the same shape if that is possible, otherwise a name."""
    compared = [name for name in names if len(name) <= LONGEST_COMPARED][:MAX_COMPARED]
    literal = skeleton(re.sub(r"\[[^\]]*\]|[*?]", "", glob.text))[:LONGEST_COMPARED]
    if glob.shape is GlobShape.HEAD:
        heads = {name[:end] for name in compared for part in _WORD_END.finditer(name) for end in part.span()}
        yield from (f"{_escaped(each)}*" for each in _closest(literal, sorted(heads)))
    if glob.shape is GlobShape.TAIL:
        tails = {name[start:] for name in compared for part in _WORD_END.finditer(name) for start in part.span()}
        yield from (f"*{_escaped(each)}" for each in _closest(literal, sorted(tails)))
    yield from map(_escaped, _closest(literal, compared))


def _closest(literal: str, names: Sequence[str]) -> list[str]:
    folded = {skeleton(name): name for name in reversed(names)}
    return [folded[each] for each in similar_names(literal, folded, cutoff=_SIMILAR)]


def _escaped(name: str) -> str:
    return re.sub(r"[*?\[]", r"[\g<0>]", name)
