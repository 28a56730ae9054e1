"""Load a configuration file, or report everything that is wrong with it.

`find` selects the file, `load` reads it with everything it references, and `load_text` does the same for a text. Nothing is
started and nothing is written, so `check` and `serve` share this path.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping as Environment
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import field
from msgspec.structs import replace

from taskgate.config.cross_references import check_references
from taskgate.config.document import kind_of, read_document
from taskgate.config.empty_scopes import check_empty_scopes
from taskgate.config.env_overrides import FORCE_REQUIRED, NUMBERS, apply_overrides, ignored_variables
from taskgate.config.environments import apply_overlay
from taskgate.config.files import read_text, unreadable
from taskgate.config.governance_forms import normalize_governance
from taskgate.config.identity_references import check_identities
from taskgate.config.leaving import Leaving, leaving, require_consent
from taskgate.config.paths import resolve_paths
from taskgate.config.problems import ConfigError, Mark, Problem, problem_at
from taskgate.config.registry_files import ServerRecords, read_registry, record_leaving, record_paths
from taskgate.config.scope_forms import normalize_scopes
from taskgate.config.secret_sources import ValueSources
from taskgate.config.server_forms import normalize_servers
from taskgate.config.tool_name_collisions import plain_name_problems
from taskgate.config.tree import Entry, Mapping, key_name
from taskgate.config.validation import validated
from taskgate.config.variables import Unset, expand
from taskgate.consent import Consent
from taskgate.core.redaction.secret_values import SecretValues
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.folders import find_config, state_folder

MAX_FILE_BYTES = 4 << 20
# A demo has one user, who makes the calls and approves them: hence self_approval.
DEMO = f"""\
servers:
  demo: {{command: {json.dumps(sys.executable)}, args: ["-P", "-m", "taskgate.demo.files"]}}
governance:
  rules:
    - {{match: "delete_*", action: approve, reason: deletions need approval}}
approval:
  default: {{self_approval: true}}
"""
_OFF, _ON = {"false", "no", "off"}, {"true", "yes", "on"}


class SkippedServer(msgspec.Struct, frozen=True):
    """A configured server that is skipped.

    `reason` is `env_missing` (`detail` lists the variables), `secret_missing` (`detail` lists the references and why each
    failed) or `disabled`.
    """

    server: str
    reason: str
    detail: str
    mark: Mark


class LoadedConfig(msgspec.Struct, frozen=True, eq=False):
    """A configuration with its warnings and skipped servers. `watch` lists the files and folders it depends on."""

    root: GatewayFile
    path: Path | None = None
    environment: str | None = None
    skipped: tuple[SkippedServer, ...] = ()
    warnings: tuple[Problem, ...] = ()
    watch: tuple[Path, ...] = ()
    state_dir: Path = field(default_factory=lambda: state_directory(os.environ))
    text: str = ""
    """The text of the file."""
    beside: Environment[str, str] = field(default_factory=dict)
    """The texts of policy files and server records, by path."""
    sections: frozenset[str] = frozenset()
    """The top-level keys of the file."""
    secret_values: SecretValues = SecretValues(())
    """The values of references. Everything that is printed or logged about this configuration is redacted with it."""
    consent: Consent | None = None
    """The user's consent, for a file to which only the working folder of a client led."""

    def __repr__(self) -> str:
        text = f"LoadedConfig({self.root!r}, path={self.path!r}, skipped={self.skipped!r}, warnings={self.warnings!r})"
        return self.secret_values.text(text)


def find(explicit: str | Path | None = None, environment: Environment[str, str] | None = None) -> Path | None:
    """Return the file to use, or None; see `folders.find_config`."""
    found = find_config(str(explicit) if explicit else None, os.environ if environment is None else environment)
    return Path(found) if found is not None else None


def load(
    path: str | Path, environment: Environment[str, str] | None = None, *, consent: Consent | None = None
) -> LoadedConfig:
    """Load a file; with `consent`, only if all that leaves it is allowed. Raises ConfigError with all problems."""
    file = Path(path).expanduser()
    text = read_text(file, MAX_FILE_BYTES)
    return load_text(text, str(path), file.absolute().parent, environment, file.absolute(), consent=consent)


def load_again(loaded: LoadedConfig, environment: Environment[str, str] | None = None) -> LoadedConfig:
    """Load the file of a configuration, which must have one, under the same conditions. Raises ConfigError."""
    assert loaded.path is not None
    return load(loaded.path, environment, consent=loaded.consent)


def load_for_client(path: str | None, *, is_found: bool) -> LoadedConfig:
    """Load the file that `consent.file_for_client` returned, or the bundled demo if there is none. Raises ConfigError."""
    if path is None:
        return default_config()
    return load(path, consent=Consent(state_folder(os.environ), path) if is_found else None)


def load_or_default(
    explicit: str | Path | None = None, environment: Environment[str, str] | None = None
) -> LoadedConfig:
    """Load the file that `find` returns, or the bundled demo if there is none."""
    path = find(explicit, environment)
    return load(path, environment) if path else default_config(environment)


def default_config(environment: Environment[str, str] | None = None) -> LoadedConfig:
    """Return the configuration that applies without a file: the demo server and one rule."""
    variables = os.environ if environment is None else environment
    tree = read_document(DEMO, "demo")
    tree, problems = apply_overrides(tree, variables)
    root, more = validated(GatewayFile, tree)
    if root is None or problems:
        raise ConfigError([*problems, *more])
    return LoadedConfig(root, warnings=tuple(ignored_variables(variables)), state_dir=state_directory(variables))


def load_text(
    text: str,
    name: str = "configuration",
    folder: Path | None = None,
    environment: Environment[str, str] | None = None,
    path: Path | None = None,
    *,
    consent: Consent | None = None,
) -> LoadedConfig:
    """Load a text; relative paths start at `folder`. Raises ConfigError."""
    variables = os.environ if environment is None else environment
    base = folder or Path.cwd()
    document = read_document(text, name, kind_of(name))
    sources = ValueSources(variables, base, consent)
    try:
        loaded = _loaded(document, sources, path, has_references=may_have_references(text))
    except ConfigError as error:
        secret_values = SecretValues(sources.values)
        raise type(error)(_without_secrets(problem, secret_values) for problem in error.problems) from None
    watch = (*loaded.watch, Path(consent.watch)) if consent is not None else loaded.watch
    return replace(loaded, text=text, watch=watch, consent=consent)


def _without_secrets(problem: Problem, secret_values: SecretValues) -> Problem:
    return replace(problem, message=secret_values.text(problem.message), hint=secret_values.text(problem.hint))


def leaving_of_file(path: str | Path, environment: Environment[str, str] | None = None) -> list[Leaving]:
    """Return what leaves a file and its server records. Of the environment only `$TASKGATE_ENV` is read. Raises ConfigError."""
    file = Path(path).expanduser()
    tree = read_document(read_text(file, MAX_FILE_BYTES), str(path), kind_of(str(path)))
    tree, _ = apply_overlay(tree, os.environ if environment is None else environment)
    tree, block = normalize_servers(_without_notes(tree))
    found = leaving(tree, block.servers)
    folder = tree.text("registry_dir")
    if folder is not None and "${" in folder:
        hint = "write the folder itself, or name this file with -c or $TASKGATE_CONFIG"
        mark = tree.entries["registry_dir"].key_mark
        raise ConfigError(
            [problem_at(mark, "registry_dir", "its records cannot be shown, because it has a reference", hint)]
        )
    with suppress(OSError, ValueError):
        for record in record_paths(file.absolute().parent / Path(folder).expanduser()) if folder is not None else ():
            with suppress(ConfigError):  # is skipped when the file is loaded, too
                found += record_leaving(record)
    return found


def _without_notes(tree: Mapping) -> Mapping:
    return tree.without(*(key for key in tree.entries if key.startswith("x-")))


def may_have_references(text: str) -> bool:
    """Whether any value of a file can contain a reference: `${`, also written with an escape."""
    return "${" in text or "\\" in text


def _loaded(document: Mapping, sources: ValueSources, path: Path | None, *, has_references: bool) -> LoadedConfig:
    base = sources.folder
    reading = _read_tree(document, sources, has_references=has_references)
    registry = _registry(reading.tree, base, reading.servers, sources)
    root = _validated_root(reading, registry, sources)
    entries = {**registry.entries, **reading.servers}
    skipped = [_missing(name, entries[name], missing) for name, missing in registry.missing.items()]
    skipped += [
        SkippedServer(name, "disabled", "", entries[name].key_mark)
        for name, server in root.servers.items()
        if not server.enabled
    ]
    secret_values, former = SecretValues(sources.values), ignored_variables(sources.environment)
    return LoadedConfig(
        root=root,
        path=path,
        environment=reading.environment,
        skipped=(*reading.skipped, *skipped),
        warnings=tuple(
            _without_secrets(warning, secret_values) for warning in (*reading.warnings, *sources.warnings, *former)
        ),
        watch=(*_watched(root, path), *dict.fromkeys(sources.files)),
        state_dir=state_directory(sources.environment),
        beside=_read_beside(root),
        sections=frozenset(document.entries),
        secret_values=secret_values,
    )


class _Reading(msgspec.Struct):
    """The normalized tree of a file, its servers, and the problems and warnings so far."""

    tree: Mapping
    environment: str | None
    servers: dict[str, Entry]
    served: dict[str, Entry]
    skipped: list[SkippedServer]
    problems: list[Problem]
    unset: list[Problem]
    warnings: list[Problem]


def _read_tree(tree: Mapping, sources: ValueSources, *, has_references: bool) -> _Reading:
    """Apply environment, overrides, server forms and variables, in this order: each may change what the next one reads."""
    variables = sources.environment
    tree, chosen = apply_overlay(tree, variables)
    tree, problems = apply_overrides(_without_notes(tree), variables)
    tree, block = normalize_servers(tree)
    # Before anything of the file is used: below, variables and files are read and commands run.
    require_consent(sources.consent, partial(leaving, tree, block.servers))
    if (tree.map("secrets").text("allow_command") or "").lower() in _ON:
        sources.allow_commands()
    overridden = any("${" in variables.get(name, "") for name in (*NUMBERS, FORCE_REQUIRED))
    tree, unset = _expanded(tree, sources) if has_references or overridden else (tree, [])
    tree, governance_problems = normalize_governance(tree)
    tree, scope_problems = normalize_scopes(tree)
    problems += [*block.problems, *governance_problems, *scope_problems]
    skipped: list[SkippedServer] = []
    served = _served(block.servers, sources, skipped)
    return _Reading(
        tree=tree,
        environment=chosen,
        servers=block.servers,
        served=served,
        skipped=skipped,
        problems=problems,
        unset=unset,
        warnings=block.warnings,
    )


def _validated_root(reading: _Reading, registry: ServerRecords, sources: ValueSources) -> GatewayFile:
    """Return the validated root with the registry records. Raises ConfigError with all problems."""
    tree = reading.tree
    whole = tree.with_value("servers", Mapping(reading.served, tree.mark)) if reading.served else tree
    root, wrong = validated(GatewayFile, whole)
    known = {**reading.servers, **registry.entries}
    references = check_references(tree, known)
    check_identities(references)
    check_empty_scopes(references)
    reading.warnings += [*registry.warnings, *references.warnings]
    unset_keys = {problem.key for problem in reading.unset}
    problems = [*reading.problems, *reading.unset, *(problem for problem in wrong if problem.key not in unset_keys)]
    problems += [*references.problems, *plain_name_problems(tree, known), *unreadable(tree, sources.folder)]
    if root is None or problems:
        raise ConfigError(problems)
    return resolve_paths(replace(root, servers={**root.servers, **registry.servers}), sources.path)


def state_directory(environment: Environment[str, str]) -> Path:
    """Return the state directory; see `folders.state_folder`."""
    return Path(state_folder(environment))


def _expanded(tree: Mapping, sources: ValueSources) -> tuple[Mapping, list[Problem]]:
    node, missing = expand(tree, sources)
    assert isinstance(node, Mapping)
    return node, [_unset_problem(item) for item in missing]


def _unset_problem(item: Unset) -> Problem:
    key = key_name(item.path)
    if item.failed is not None:
        return problem_at(item.mark, key, f'"${{{item.variable[:200]}}}" {item.failed.why}', item.failed.hint)
    if not item.readable:
        return problem_at(
            item.mark, key, f'"${{{item.variable[:60]}}}" is not a valid reference', "write ${NAME} or ${NAME:-default}"
        )
    hint = f"set it, or give a default: ${{{item.variable}:-default}}"
    return problem_at(item.mark, key, f"the environment variable {item.variable} is not set", hint)


def _served(servers: dict[str, Entry], sources: ValueSources, skipped: list[SkippedServer]) -> dict[str, Entry]:
    """Return the servers whose variables are all set, and add the others to `skipped`."""
    served: dict[str, Entry] = {}
    for name, entry in servers.items():
        value, missing = expand(entry.value, sources)
        if not missing:
            served[name] = Entry(name, entry.key_mark, value)
        elif isinstance(value, Mapping) and (value.text("enabled") or "").lower() in _OFF:
            skipped.append(SkippedServer(name, "disabled", "", entry.key_mark))
        else:
            skipped.append(_missing(name, entry, missing))
    return served


def _missing(name: str, entry: Entry, missing: list[Unset]) -> SkippedServer:
    if any(item.failed for item in missing):
        details = (f"${{{item.variable[:200]}}} {item.failed.why if item.failed else 'is not set'}" for item in missing)
        return SkippedServer(name, "secret_missing", ", ".join(dict.fromkeys(details)), missing[0].mark)
    variables = ", ".join(dict.fromkeys(item.variable for item in missing))
    return SkippedServer(name, "env_missing", variables, missing[0].mark if missing else entry.key_mark)


def _registry(tree: Mapping, base: Path, servers: dict[str, Entry], sources: ValueSources) -> ServerRecords:
    folder = tree.text("registry_dir")
    if folder is None:
        return ServerRecords()
    taken = {name: entry.key_mark for name, entry in servers.items()}
    return read_registry(base / Path(folder).expanduser(), tree.entries["registry_dir"].key_mark, taken, sources)


def _watched(root: GatewayFile, path: Path | None) -> tuple[Path, ...]:
    files = [path] if path else []
    if root.registry_dir:
        files.append(Path(root.registry_dir))
    files += [Path(policy) for policy in root.cedar.policies]
    if root.cedar.entities:
        files.append(Path(root.cedar.entities))
    return tuple(files)


def _read_beside(root: GatewayFile) -> dict[str, str]:
    """Return the texts of the policy files and records that a reload checks for truncation.

    Unreadable files are reported where they are used. JSON records are not included: a truncated one is invalid anyway.
    """
    files = [Path(policy) for policy in root.cedar.policies]
    if root.registry_dir:
        with suppress(ValueError):  # since Python 3.14 for a name that contains a null byte
            found = Path(root.registry_dir).glob("*")
            files += [file for file in found if file.suffix.lower() in (".yaml", ".yml", ".toml")]
    texts = {}
    for file in files:
        with suppress(ConfigError):
            texts[str(file)] = read_text(file, MAX_FILE_BYTES)
    return texts
