"""Read server records, one file each, from `registry_dir`.

An invalid file is reported and skipped; the others load. A record without `allowed_tools` exposes no tool. The id is
`id` or `server_id`, else the file name.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from msgspec import field

from taskgate.config.document import kind_of, read_document
from taskgate.config.files import read_text
from taskgate.config.leaving import Leaving, NotAllowed, require_consent, server_leaving
from taskgate.config.problems import ConfigError, Mark, Problem, problem_at
from taskgate.config.secret_sources import ValueSources
from taskgate.config.server_forms import normalize_server
from taskgate.config.tree import Entry, Mapping, Sequence
from taskgate.config.validation import validated
from taskgate.config.variables import Unset, expand
from taskgate.core.settings.servers import Server
from taskgate.core.settings.values import server_id_fault

MAX_RECORD_BYTES = 256 << 10
MAX_RECORDS = 10_000
SMALL_RECORD = 8 << 10
_ENDINGS = {".yaml", ".yml", ".json", ".toml"}


class ServerRecords(msgspec.Struct):
    """The records of a folder, and warnings about those that were skipped."""

    servers: dict[str, Server] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    missing: dict[str, list[Unset]] = field(default_factory=dict)
    warnings: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def read_registry(folder: Path, mark: Mark, taken: Environment[str, Mark], sources: ValueSources) -> ServerRecords:
    """Read all valid records of a folder; `taken` are the ids that the main file already uses."""
    registry = ServerRecords()
    try:
        paths = record_paths(folder)
    except (OSError, ValueError) as error:
        # Python raises ValueError for a name that contains a null byte.
        why = (error.strerror or error) if isinstance(error, OSError) else "its name contains a null byte"
        message = f"cannot be read ({why}); no records are loaded"
        registry.warnings.append(problem_at(mark, "registry_dir", message, "create the folder, or remove the key"))
        return registry
    if len(paths) > MAX_RECORDS:
        message = f"contains more than {MAX_RECORDS} files; the rest are skipped"
        registry.warnings.append(problem_at(mark, "registry_dir", message))
    folded = {key.casefold(): where for key, where in taken.items()}
    for path in paths[:MAX_RECORDS]:
        registry.files.append(path)
        try:
            _add_record(registry, path, folded, sources)
        except NotAllowed:
            raise
        except ConfigError as error:
            registry.warnings += error.problems
    return registry


def record_paths(folder: Path) -> list[Path]:
    """Return the files of a folder that are records. Raises OSError or ValueError."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in _ENDINGS and not p.name.startswith("."))


def record_leaving(path: Path) -> list[Leaving]:
    """Return what leaves a record. Raises ConfigError."""
    tree = _tree(read_text(path, MAX_RECORD_BYTES), path)
    name, _ = _id_of(tree, path)
    return server_leaving(name, _normalized(tree))


def _normalized(tree: Mapping) -> Mapping:
    return normalize_server(tree.without("id", "server_id", "schema"))


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
            [problem_at(place, "id", f'"{name}" is already used (at {first})', "this record is skipped; rename it")]
        )
    record = _normalized(tree)
    require_consent(sources.consent, partial(server_leaving, name, record))
    if "allowed_tools" not in record.entries:
        record = record.with_value("allowed_tools", Sequence((), tree.mark))
        hint = 'write allowed_tools: ["*"] to allow all tools'
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
    registry.servers[name] = server


def _tree(text: str, path: Path) -> Mapping:
    """Parse a record. Most are unchanged at a reload, so small ones are cached by their text."""
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
