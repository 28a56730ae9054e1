"""Generate the configuration reference and an example file from the models.

`python -m taskgate.config.explain` prints the reference (`docs/configuration.md`), `python -m taskgate.config.explain example`
the example (`docs/taskgate.example.yaml`). A test compares both files with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_origin

from taskgate.config.env_overrides import FORCE_REQUIRED, FORMER_PREFIX, NUMBERS
from taskgate.config.introspection import bare, inner, is_section, key_of, literal_values, variants
from taskgate.config.json_schema import EDITOR_COMMENT
from taskgate.config.model.durations import format_duration
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.sections import FieldInfo, Section
from taskgate.folders import STATE_VARIABLE

_INTRODUCTION = """# Configuration

This is the reference of all configuration keys. Taskgate reads one YAML file. It uses the first of: `-c FILE`,
`$TASKGATE_CONFIG`, `./taskgate.yaml`, and `taskgate/taskgate.yaml` in `$XDG_CONFIG_HOME` (`~/.config`). What a client starts uses
`./taskgate.yaml` only after [`taskgate allow`](project-files.md). Without a file it
serves a bundled demo server, whose `delete_*` tools need approval.

`taskgate check` validates a file exactly as `serve` does and reports every mistake as `file:line:column: key: problem;
correction`. Unknown keys are mistakes.

- **Variables**: `${VAR}`, `${VAR:-default}` and `${env:VAR}` are replaced by environment variables; `$${` is a literal `${`.
  A server with an unset variable is skipped (reason `env_missing`). Anywhere else an unset variable is a mistake.
- **Secrets by reference** can be used wherever a variable can:
    - `${file:PATH}` reads a file, relative to the folder of the configuration file, without the final newline. A file that every
      user can read causes a warning.
    - `${keyring:SERVICE/USER}` reads the platform keyring, with a timeout of 10 s. It needs `pip install "taskgate[keyring]"`, also
      with an install from the lock files in `requirements/`.
    - `${command:PROGRAM ARGUMENT}` uses the stdout of a program, if `secrets: {allow_command: true}` is set. Arguments are split as
      in a shell, but no shell is used. The program runs in the folder of the configuration file for at most 10 s, and its stderr is
      discarded.

  Each returns at most 64 KiB of UTF-8 text. A server with a reference that fails is skipped (reason `secret_missing`); anywhere
  else it is a mistake. Every reload resolves all references again, and a changed file causes a reload.
- **Redaction**: values from variables and references, and values of keys with a secret name (token, secret, password, key,
  authorization, ...; everything in `headers` and `env`) are shown as `[hidden]` in `check`, `doctor`, the console, the API and the
  log. Within longer texts this applies to values of at least 6 characters.
- **Durations**: `10m`, `1h 30m`, `45s`, `250ms`, `PT10M`. Keys that end in `_ms` also accept a number of milliseconds.
- **Sizes**: a number of bytes, or for example `512KiB`, `4MiB`.
- **Booleans**: `true` and `false`; unquoted `on`, `off`, `yes`, `no` are accepted too.
- **Paths** are relative to the folder of the file; `~` is the home folder.
- **Patterns** are case-sensitive globs on a tool's own name; `server:pattern` restricts one to a server.
- **Servers** can be pasted from other programs: an `mcpServers` block, VS Code's `servers` (with `type`), or `sources: [{id,
  kind: mcp, url, prefix, enabled, expose}]`.
- **Server records** in `registry_dir`: one file each (YAML, JSON or TOML) with `id` (or `server_id`) and the keys of a server.
  An invalid file is reported and skipped. A record without `allowed_tools` exposes no tool.
- **Environments**: `environments: {staging: {...}}` is merged into the file when `$TASKGATE_ENV` (or `environment:`) is
  `staging`. Maps are merged, lists and single values are replaced, and an empty value removes the key.
- **Scopes as strings**: `scopes: {x: {config: {"mcp.enabled": "true", "mcp.default_server_ids": "[\\"a\\"]"}}}` with the keys
  `mcp.enabled`, `mcp.default_server_ids`, `mcp.allowed_server_ids`, `mcp.tool_allowlist`, `mcp.tool_denylist`, `mcp.tags`,
  `mcp.profile`, `mcp.profile_overrides`. Lists are JSON arrays or comma-separated.
- Top-level keys that begin with `x-` are ignored; use them for YAML anchors.
- `task_annotation_overrides: {force_required: [...]}` is an alias of `governance.force_required`.
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
#   - {id: agent, sha256: "<64 hex digits from: taskgate tokens new agent>"}
#   - {id: ann, sha256: "<64 hex digits from: taskgate tokens new ann>", roles: [approver]}
""",
}


def reference() -> str:
    """Return every key with its type, default and description, as Markdown."""
    parts = [_INTRODUCTION, _variables_table()]
    for title, model in _sections(GatewayFile, ""):
        parts.append(f"## {title or 'Top level'}\n\n{_docline(model)}\n\n{_table(model)}")
    return "\n".join(parts)


def example() -> str:
    """Return a valid file with every key and its default in comments."""
    about = "# Taskgate configuration with every key and its default. Uncomment and change what you need.\n"
    parts = [f"{EDITOR_COMMENT}\n# For editor support, run: taskgate schema > taskgate.schema.json\n{about}"]
    for name, field in GatewayFile.model_fields.items():
        parts.append(_example_key(key_of(name, GatewayFile), field))
    return "\n".join(parts)


def _sections(model: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
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


def _docline(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table(model: type[Section]) -> str:
    rows = ["| Key | Type | Default | Description |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        cells = (f"`{key_of(name, model)}`", _type(field), _default_cell(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _type(field: FieldInfo) -> str:
    return _type_of(bare(field.annotation), str(field.annotation) + str(field.metadata))


def _type_of(annotation: Any, hints: str) -> str:
    if words := literal_values(annotation):
        return ", ".join(f"`{word}`" for word in words)
    if (held := inner(annotation)) is not None:
        kind = "list" if _is_list(annotation) else "map"
        return f"{kind} of {_type_of(bare(held), hints).removeprefix('a ')}"
    if is_section(annotation) or variants(annotation):
        return "section"
    if annotation is int:
        return "bytes" if "_bytes" in hints else "milliseconds" if "milliseconds" in hints else "integer"
    names = {str: "string", bool: "boolean", float: "number", timedelta: "duration"}
    return names.get(annotation, "string")


def _default_cell(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    text = _default(field)
    return f"`{text}`" if text else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    return "" if value is None or isinstance(value, Section) else _spelled(value)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Section):
        return str(getattr(value, "type", "{}"))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_spelled(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    return '"*"' if value == "*" else str(value)


def _variables_table() -> str:
    rows = ["Environment variables that override the file:", "", "| Variable | Key |", "|---|---|"]
    rows += [f"| `{variable}` | `{section}.{key}` |" for variable, (section, key, _) in NUMBERS.items()]
    rows.append(f"| `{FORCE_REQUIRED}` | adds to `governance.force_required` (comma-separated) |")
    default = "`$XDG_STATE_HOME/taskgate`, else `~/.local/state/taskgate`"
    rows.append(f"| `{STATE_VARIABLE}` | state directory (default {default}) |")
    former = f"Variables with the prefix `{FORMER_PREFIX}` have no effect; `check`, `doctor` and the log report those that are set."
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


def _example_section(model: type[Section], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in model.model_fields.items():
        key = key_of(name, model)
        annotation = bare(field.annotation)
        # A section that is absent by default may have required keys, so only its name is shown.
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
