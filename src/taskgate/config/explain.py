"""The configuration explained: a reference of every key, an example file with every default, and a JSON schema for editors.

All are made from the sections themselves, so they cannot drift; the copies in `docs/` are compared with them in the tests.
`python -m taskgate.config.explain` prints the reference, `... example` the example. The schema is wider than the models where the
file may be: any scalar may be written as text (`10m`, `16MiB`, `${VARIABLE}`), lists as comma lists, and servers in the forms of
other programs. `taskgate check` has the last word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from taskgate.config.env_overrides import FORCE_REQUIRED, FORMER_PREFIX, NUMBERS
from taskgate.config.introspection import bare, inner, is_section, key_of, variants, words_of
from taskgate.config.json_schema import EDITOR_COMMENT
from taskgate.config.model.durations import spell
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.folders import STATE_VARIABLE

_INTRODUCTION = """# Configuration

One YAML file. Taskgate looks for it in this order: `-c FILE`, `$TASKGATE_CONFIG`, `./taskgate.yaml`,
`taskgate/taskgate.yaml` in `$XDG_CONFIG_HOME` (`~/.config`); without any it serves a bundled demo server, whose `delete_*`
tools wait for an approval. `taskgate check` reads a file exactly as `serve` does and reports every mistake as
`file:line:column: key: what is wrong; what would be right`. An unknown key is a mistake.

- **Variables**: `${VAR}`, `${VAR:-default}` and `${env:VAR}` are filled in from the environment; `$${` is a literal
  `${`. An unset variable inside one server takes that server out (reason `env_missing`); anywhere else it is a
  mistake.
- **Secrets by reference**, wherever a variable may stand: `${file:PATH}` (from the folder of this file, without the newline
  at its end; a warning if every user can read it), `${keyring:SERVICE/USER}` (the platform's keyring, which has 10 s to
  answer; needs `pip install "taskgate[keyring]"`, also beside an install from the lock files in `requirements/`), and
  `${command:PROGRAM ARGUMENT}` if `secrets: {allow_command: true}` is given: split like in a shell but run without one, for at
  most 10 s, from the folder of this file; what it writes to stderr is dropped.
  Each gives at most 64 KiB of UTF-8 text, without braces in the reference. A reference that fails inside one server takes
  that server out (reason `secret_missing`); anywhere else it is a mistake that names the reference. Every reload reads
  them anew, and a changed file causes one.
- **Never shown**: whatever came from a variable or another reference, and whatever bears a secret name (token, secret,
  password, key, authorization, ...; all of `headers` and `env`), is `[hidden]` in `check`, `doctor`, the console, the API and the
  log. Within longer texts that holds for values of 6 characters and more.
- **Lengths of time**: `10m`, `1h 30m`, `45s`, `250ms`, `PT10M`; keys that end in `_ms` also take a number of
  milliseconds.
- **Sizes**: a number of bytes, or `512KiB`, `4MiB`.
- **Switches**: `true` and `false`; unquoted `on`, `off`, `yes`, `no` work too.
- **Paths** start at the folder of the file; `~` is the home folder.
- **Patterns** are globs on a tool's own name, case-sensitive; `server:pattern` limits one to a server.
- **Servers** may also be pasted: an `mcpServers` block, VS Code's `servers` (with `type`), or `sources: [{id, kind:
  mcp, url, prefix, enabled, expose}]`.
- **Records** in `registry_dir`: one file each (YAML, JSON or TOML) with `id` (or `server_id`) and the keys of a
  server; a bad file is reported and the rest load. A record without `allowed_tools` shows nothing.
- **Environments**: `environments: {staging: {...}}` is laid over the rest of the file when `$TASKGATE_ENV` (or
  `environment:`) says `staging`. Maps are merged, lists and single values replace, an empty value removes the key.
- **A scope as strings**: `scopes: {x: {config: {"mcp.enabled": "true", "mcp.default_server_ids": "[\\"a\\"]"}}}`
  with the keys `mcp.enabled`, `mcp.default_server_ids`, `mcp.allowed_server_ids`, `mcp.tool_allowlist`,
  `mcp.tool_denylist`, `mcp.tags`, `mcp.profile`, `mcp.profile_overrides`; lists are JSON arrays or comma lists.
- Keys at the top that begin with `x-` are yours, for anchors.
- `task_annotation_overrides: {force_required: [...]}` is another name for `governance.force_required`.
"""
_SAMPLES = {
    "servers": """servers:
  files: {command: python, args: ["-m", "taskgate.demo.files"], tags: [local]}
  # reports: {url: "https://reports.example/mcp", headers: {Authorization: "Bearer ${REPORTS_TOKEN}"}}
""",
    "approval": """# approval:
#   ops: {channels: [inbox], timeout: 10m, redact_fields: [token]}
""",
    "profiles": """# profiles:
#   code-review: {servers: [files], tags: [local], tool_denylist: ["delete_*"]}
""",
    "scopes": """# scopes:
#   default: {default_servers: ["*"]}
#   review: {profile: code-review, allowed_servers: [files]}
""",
    "providers": """# providers:
#   local: {kind: openai, base_url: "http://127.0.0.1:11434/v1", models: [{name: small, cost: 1, speed: 1}]}
""",
    "store": """# store:
#   url: "sqlite:///./taskgate.db"
""",
    "tokens": """# tokens:
#   - {id: agent, sha256: "<64 hex digits from: taskgate token new agent>"}
#   - {id: ann, sha256: "<64 hex digits from: taskgate token new ann>", roles: [approver]}
""",
}


def reference() -> str:
    """Every key with its type, default and meaning, as Markdown."""
    parts = [_INTRODUCTION, _variables_table()]
    for title, model in _sections(GatewayFile, ""):
        parts.append(f"## {title or 'Top of the file'}\n\n{_docline(model)}\n\n{_table(model)}")
    return "\n".join(parts)


def example() -> str:
    """A file that loads as it is, with every key and its default in comments."""
    about = "# Taskgate configuration. Every key is here with its default; uncomment what you change.\n"
    parts = [f"{EDITOR_COMMENT}\n# For editors: taskgate schema > taskgate.schema.json\n{about}"]
    for name, field in GatewayFile.model_fields.items():
        parts.append(_example_key(key_of(name, GatewayFile), field))
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        here = bare(field.annotation)
        step = key_of(name, model)
        where = f"{path}.{step}" if path else step
        if (held := inner(here)) is not None:
            here, where = bare(held), f"{where}[]" if _is_list(here) else f"{where}.NAME"
        for variant in variants(here):
            yield from _sections(variant, f"{where} (type: {variant.model_fields['type'].default})")
        if is_section(here):
            yield from _sections(here, where)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _docline(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table(model: type[BaseModel]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        cells = (f"`{key_of(name, model)}`", _type(field), _default_cell(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _type(field: FieldInfo) -> str:
    return _type_of(bare(field.annotation), str(field.annotation) + str(field.metadata))


def _type_of(annotation: Any, hints: str) -> str:
    if words := words_of(annotation):
        return ", ".join(f"`{word}`" for word in words)
    if (held := inner(annotation)) is not None:
        kind = "list" if _is_list(annotation) else "map"
        return f"{kind} of {_type_of(bare(held), hints).removeprefix('a ')}"
    if is_section(annotation) or variants(annotation):
        return "section"
    if annotation is int:
        return "bytes" if "_bytes" in hints else "milliseconds" if "milliseconds" in hints else "whole number"
    names = {str: "text", bool: "switch", float: "number", timedelta: "length of time"}
    return names.get(annotation, "text")


def _default_cell(field: FieldInfo) -> str:
    if field.is_required():
        return "(needed)"
    text = _default(field)
    return f"`{text}`" if text else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return "" if value is None or isinstance(value, BaseModel) else _spelled(value)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return spell(value)
    if isinstance(value, BaseModel):
        return str(getattr(value, "type", "{}"))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_spelled(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    return '"*"' if value == "*" else str(value)


def _variables_table() -> str:
    rows = ["Variables that win over the file:", "", "| variable | key |", "|---|---|"]
    rows += [f"| `{variable}` | `{section}.{key}` |" for variable, (section, key, _) in NUMBERS.items()]
    rows.append(f"| `{FORCE_REQUIRED}` | adds to `governance.force_required` (comma list) |")
    default = "`$XDG_STATE_HOME/taskgate`, else `~/.local/state/taskgate`"
    rows.append(f"| `{STATE_VARIABLE}` | where state is kept (default {default}) |")
    former = f"With the prefix `{FORMER_PREFIX}` they have no effect; `check`, `doctor` and the log report those that are set."
    return "\n".join([*rows, "", former]) + "\n"


def _example_key(key: str, field: FieldInfo) -> str:
    comment = f"# {field.description}\n"
    if key in _SAMPLES:
        return comment + _SAMPLES[key]
    if key == "schema":
        return f"{comment}schema: 1\n"
    annotation = bare(field.annotation)
    if is_section(annotation):
        return f"{comment}# {key}:\n" + "".join(_example_section(annotation, 1))
    return f"{comment}# {key}:{_with_space(_default(field))}\n"


def _example_section(model: type[BaseModel], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in model.model_fields.items():
        key = key_of(name, model)
        annotation = bare(field.annotation)
        # A section that is absent by default may need keys that have no default, so only its name is shown.
        if is_section(annotation) and field.default is not None:
            yield f"# {indent}{key}:  # {field.description}\n"
            yield from _example_section(annotation, depth + 1)
        else:
            default = "" if field.is_required() else _default(field)
            yield f"# {indent}{key}:{_with_space(default)}  # {field.description}\n"


def _with_space(text: str) -> str:
    return f" {text}" if text else ""


if __name__ == "__main__":
    sys.stdout.write(example() if sys.argv[1:] == ["example"] else reference())
