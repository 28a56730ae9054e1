"""A tree against a section's rules, server records from `registry_dir`, and collisions of plain tool names."""

from __future__ import annotations

from collections.abc import Mapping as Environment
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from taskgate.config.document import kind_of, read_document
from taskgate.config.overlays import Unset, expand
from taskgate.config.problems import (
    ConfigError,
    Entry,
    KeyPath,
    Mapping,
    Mark,
    Node,
    Problem,
    Scalar,
    Sequence,
    at,
    did_you_mean,
    key_name,
    keys_at,
    meaning_at,
    one_of,
    problem_at,
    text_of,
)
from taskgate.config.references import GLOB_CHARACTERS, each, tags_of
from taskgate.config.server_forms import in_our_form
from taskgate.config.servers import Server
from taskgate.config.value_sources import ValueSources, read_text
from taskgate.config.words import server_id_fault, spell
from taskgate.core.errors import TaskgateError
from taskgate.core.patterns import ALL_TOOLS, PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord, SessionRequest
from taskgate.core.scoping.scope import Narrowing, Profile, ResolvedProfile, ScopePolicy, resolve_profile
from taskgate.core.scoping.subset import Subset, compose

Kind = TypeVar("Kind", bound=BaseModel)

_WANTED = {
    "string_type": "must be text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a map of keys",
    "model_type": "must be a map of keys",
    "model_attributes_type": "must be a map of keys",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}


def validated(model: type[Kind], tree: Mapping, prefix: KeyPath = ()) -> tuple[Kind | None, list[Problem]]:
    """The section a tree stands for, or everything that is wrong with it; `prefix` is where the tree sits in the
    file.
    """
    try:
        return model.model_validate(present(tree)), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        told = (_told(model, tree, dict(item), prefix) for item in found)
        return None, [problem for problem in told if problem is not None]


def present(node: Node) -> Any:
    """The tree as plain values, without keys that were left empty: `rules:` with nothing after it means no rules."""
    if isinstance(node, Mapping):
        values = {entry.key: present(entry.value) for entry in node}
        return {key: value for key, value in values.items() if value is not None}
    if isinstance(node, Sequence):
        return [present(item) for item in node.items]
    return node.text


def _told(model: type[BaseModel], tree: Mapping, error: dict[str, Any], prefix: KeyPath) -> Problem | None:
    kind: str = error["type"]
    raw: KeyPath = tuple(error["loc"])
    path = _walked(tree, raw, keep_last=kind == "missing")
    mark, node = at(tree, path)
    key = key_name((*prefix, *path))
    if kind == "extra_forbidden":
        return problem_at(mark, key, "unknown key", _suggestion(model, raw, str(path[-1])))
    if kind == "missing":
        return problem_at(mark, key, "is missing", f"add it: {meaning_at(model, raw)}")
    if kind == "too_short" and isinstance(node, Sequence) and node.items:
        # Pydantic counts only the good items; each bad one has its own problem already.
        return None
    if kind == "value_error":
        message, _, hint = str(error["ctx"]["error"]).partition("; ")
        return problem_at(mark, key, message, hint)
    message, hint = _sentence(kind, error, node)
    return problem_at(mark, key, message, hint)


def _walked(tree: Mapping, raw: KeyPath, *, keep_last: bool) -> KeyPath:
    """The path without the steps that only pydantic knows (names of variants, `[key]`)."""
    path: list[str | int] = []
    here: Node | None = tree
    for position, step in enumerate(raw):
        if isinstance(here, Mapping) and isinstance(step, str) and step in here.entries:
            here = here.entries[step].value
        elif isinstance(here, Sequence) and isinstance(step, int) and step < len(here.items):
            here = here.items[step]
        elif not (keep_last and position == len(raw) - 1):
            continue
        path.append(step)
    return tuple(path)


def _suggestion(model: type[BaseModel], raw: KeyPath, key: str) -> str:
    known = keys_at(model, raw[:-1])
    return did_you_mean(key, known) or f"known here: {one_of(known, 40)}"


def _sentence(kind: str, error: dict[str, Any], node: Node | None) -> tuple[str, str]:
    word = node.get("type") if kind == "union_tag_invalid" and isinstance(node, Mapping) else node
    given = word.text if isinstance(word, Scalar) and not word.secret else None
    context = error.get("ctx", {})
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        return f"{words} {spell(bound) if isinstance(bound, timedelta) else bound}", ""
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        words_allowed = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
        shown = f'"{given[:60]}" is not one of' if given is not None else "must be one of"
        return f"{shown} {one_of(words_allowed)}", did_you_mean(given, words_allowed) if given else ""
    if kind == "union_tag_not_found":
        return "has no type", "write a word such as inbox, or a map with type: webhook"
    if kind in _WANTED:
        return _WANTED[kind], "" if "short" in kind else _what_is_there(node)
    return str(error["msg"])[:200], ""


def _what_is_there(node: Node | None) -> str:
    match node:
        case Mapping():
            return "there is a map"
        case Sequence():
            return "there is a list"
        case Scalar(text=None):
            return "there is nothing"
        case Scalar(secret=False, text=str(text)) if len(text) <= 60:
            return f'there is "{text}"'
        case _:
            return ""


# Collisions of plain tool names that a configuration file already shows, before any server was asked.
#
# What a scope would give is asked of the same function that serves it (`subset.compose`), so profiles, tags and lists
# count here as they will there. What only the servers' lists show is refused when they are merged. Called by `load`.

_EVERYTHING = SessionRequest((("*",),))
"""The most that a session may ask for, not only what it gets by default."""


def plain_name_problems(root: Mapping, servers: dict[str, Entry]) -> list[Problem]:
    """With plain names, two servers may not bring the same tool: known here only of tools that the file names."""
    problems: list[Problem] = []
    for entry in root.map("scopes"):
        scope = entry.value
        if not isinstance(scope, Mapping) or scope.text("names") != "plain":
            continue
        try:
            subset = _subset(root, servers, entry.key, scope)
        except TaskgateError:
            # A bad pattern or profile, which is reported where it stands.
            continue
        mark = scope.entries["names"].value.mark
        problems += [
            problem_at(mark, f"scopes.{entry.key}.names", message, "write names: prefixed, or deny one of them")
            for message in _collisions(subset, servers)
        ]
    return problems


def _collisions(subset: Subset, servers: dict[str, Entry]) -> list[str]:
    found: list[str] = []
    owners: dict[str, str] = {}
    for name in subset.servers:
        for tool in subset.admitted(name, _named_tools(servers[name])):
            owner = owners.setdefault(tool, name)
            if owner != name:
                found.append(f'servers "{owner}" and "{name}" both have the tool "{tool}"')
    return found


def _subset(root: Mapping, servers: dict[str, Entry], name: str, scope: Mapping) -> Subset:
    policy = ScopePolicy(
        name,
        _words(scope, "default_servers"),
        _words(scope, "allowed_servers") if "allowed_servers" in scope.entries else None,
        _patterns(scope, "tool_allowlist"),
        _patterns(scope, "tool_denylist") or PatternSet(),
        _profile(root, scope),
        _words(scope, "tags"),
    )
    return compose(Registry.build(map(_record, servers.values())), policy, _EVERYTHING, asking=False)


def _profile(root: Mapping, scope: Mapping) -> ResolvedProfile | None:
    name = scope.text("profile")
    if name is None:
        return None
    written = {
        entry.key: Profile(
            entry.key,
            _words(entry.value, "extends"),
            _words(entry.value, "servers"),
            _words(entry.value, "tags"),
            (),
            _patterns(entry.value, "tool_allowlist"),
            _patterns(entry.value, "tool_denylist") or PatternSet(),
        )
        for entry in root.map("profiles")
        if isinstance(entry.value, Mapping)
    }
    more = scope.map("profile_overrides")
    narrowing = Narrowing(
        _words(more, "servers") if "servers" in more.entries else None,
        (),
        _patterns(more, "tool_allowlist"),
        _patterns(more, "tool_denylist") or PatternSet(),
    )
    return resolve_profile(written, name).narrowed(narrowing)


def _record(server: Entry) -> RegistryRecord:
    allowed = _patterns(server.value, "allowed_tools") if isinstance(server.value, Mapping) else None
    return RegistryRecord(
        server.key, allowed_tools=ALL_TOOLS if allowed is None else allowed, tags=frozenset(tags_of(server))
    )


def _words(owner: Mapping, key: str) -> tuple[str, ...]:
    return tuple(word for node, _ in each(owner.get(key), "") if (word := text_of(node)) is not None)


def _patterns(owner: Mapping, key: str) -> PatternSet | None:
    return PatternSet.of(_words(owner, key)) if key in owner.entries else None


def _named_tools(server: Entry) -> list[str]:
    """The tools that a server is known to have, because the file calls them by name."""
    if not isinstance(server.value, Mapping):
        return []
    allowed = _words(server.value, "allowed_tools")
    named = [word for word in allowed if word and ":" not in word and not GLOB_CHARACTERS & set(word)]
    return list(dict.fromkeys([*named, *server.value.map("tools").entries]))


# Server records, one file each, from `registry_dir`.
#
# A bad file is reported and passed over; the rest load. A record must say what it allows: without `allowed_tools`
# nothing of it is visible. The id is `id` or `server_id`, else the name of the file. Only files are read here; what a
# record may hold is `servers`.

MAX_RECORD_BYTES = 256 << 10
MAX_RECORDS = 10_000
SMALL_RECORD = 8 << 10
_ENDINGS = {".yaml", ".yml", ".json", ".toml"}


@dataclass(slots=True)
class ServerRecords:
    """What a folder of records gave."""

    servers: dict[str, Server] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    missing: dict[str, list[Unset]] = field(default_factory=dict)
    warnings: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def read_registry(folder: Path, mark: Mark, taken: Environment[str, Mark], sources: ValueSources) -> ServerRecords:
    """Every good record of a folder; `taken` are the ids that the main file already uses."""
    registry = ServerRecords()
    try:
        paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in _ENDINGS and not p.name.startswith("."))
    except (OSError, ValueError) as error:
        # A name with a zero byte in it is no name at all, which Python says by a ValueError.
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        message = f"cannot be read ({why}); no records are loaded"
        registry.warnings.append(problem_at(mark, "registry_dir", message, "make the folder or remove the key"))
        return registry
    if len(paths) > MAX_RECORDS:
        message = f"holds more than {MAX_RECORDS} files; the rest are passed over"
        registry.warnings.append(problem_at(mark, "registry_dir", message))
    folded = {key.casefold(): where for key, where in taken.items()}
    for path in paths[:MAX_RECORDS]:
        registry.files.append(path)
        try:
            _add_record(registry, path, folded, sources)
        except ConfigError as error:
            registry.warnings += error.problems
    return registry


def _add_record(registry: ServerRecords, path: Path, taken: dict[str, Mark], sources: ValueSources) -> None:
    tree = _tree(read_text(path, MAX_RECORD_BYTES), path)
    name, place = _id_of(tree, path)
    fault = server_id_fault(name)
    if fault:
        message, _, hint = fault.partition("; ")
        raise ConfigError([problem_at(place, "id", f'"{name[:60]}" {message}', hint)])
    first = taken.setdefault(name.casefold(), place)
    if first is not place:
        raise ConfigError(
            [problem_at(place, "id", f'"{name}" is taken (at {first})', "this record is passed over; rename it")]
        )
    record = in_our_form(tree.without("id", "server_id", "schema"))
    if "allowed_tools" not in record.entries:
        record = record.with_value("allowed_tools", Sequence((), tree.mark))
        hint = 'write allowed_tools: ["*"] to allow all of them'
        registry.warnings.append(
            problem_at(place, "allowed_tools", "is missing, so no tool of this server is visible", hint)
        )
    expanded, missing = expand(record, sources)
    registry.entries[name] = Entry(name, place, expanded)
    if missing:
        registry.missing[name] = missing
        return
    assert isinstance(expanded, Mapping)
    server, problems = validated(Server, expanded)
    if server is None:
        del registry.entries[name]
        raise ConfigError(problems)
    registry.servers[name] = server.model_copy(update={"origin": str(path)})


def _tree(text: str, path: Path) -> Mapping:
    """Most records are the same at the next reload; only what changed is parsed again."""
    return _remembered(text, str(path)) if len(text) <= SMALL_RECORD else _parsed(text, str(path))


@lru_cache(maxsize=4096)
def _remembered(text: str, name: str) -> Mapping:
    return _parsed(text, name)


def _parsed(text: str, name: str) -> Mapping:
    return read_document(text, name, kind_of(name))


def _id_of(tree: Mapping, path: Path) -> tuple[str, Mark]:
    for key in ("id", "server_id"):
        text = tree.text(key)
        if text is not None:
            return text, tree.entries[key].key_mark
    return path.stem, Mark(str(path), 1, 1)
