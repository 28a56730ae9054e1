"""Generate the configuration reference and an example file from the sections.

`python -m taskgate.config.explain` prints the reference (`docs/configuration.md`), `python -m taskgate.config.explain example`
the example (`docs/taskgate.example.yaml`). A test compares both files with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from taskgate.config.env_overrides import FORCE_REQUIRED, FORMER_PREFIX, NUMBERS
from taskgate.config.json_schema import EDITOR_COMMENT, Schema, section_schemas, spelled_default, unit_of
from taskgate.core.settings.gateway_file import GatewayFile
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
_ROOT = GatewayFile.__name__
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
    schemas = section_schemas()
    for title, section in _sections(schemas, _ROOT, ""):
        parts.append(f"## {title or 'Top level'}\n\n{_about(section)}\n\n{_table(section)}")
    return "\n".join(parts)


def example() -> str:
    """Return a valid file with every key and its default in comments."""
    about = "# Taskgate configuration with every key and its default. Uncomment and change what you need.\n"
    parts = [f"{EDITOR_COMMENT}\n# For editor support, run: taskgate schema > taskgate.schema.json\n{about}"]
    schemas = section_schemas()
    parts += [_example_key(schemas, key, value) for key, value in schemas[_ROOT]["properties"].items()]
    return "\n".join(parts)


def _sections(schemas: dict[str, Schema], name: str, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schemas[name]
    for key, value in schemas[name]["properties"].items():
        where, held = f"{path}.{key}" if path else key, _without_null(value)
        if held.get("type") == "array":
            where, held = f"{where}[]", _without_null(held["items"])
        elif held.get("type") == "object":
            where, held = f"{where}.NAME", held["additionalProperties"]
        variants = held.get("anyOf", ())
        for below in variants or (held,):
            if "$ref" in below:
                section = _name_of(below)
                kind = f" (type: {schemas[section]['properties']['type']['enum'][0]})" if variants else ""
                yield from _sections(schemas, section, where + kind)


def _name_of(reference: Schema) -> str:
    return str(reference["$ref"].rpartition("/")[2])


def _without_null(schema: Schema) -> Schema:
    """Return the schema of an optional value without null."""
    some = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return some[0] if len(some) == 1 else schema


def _about(section: Schema) -> str:
    return " ".join(section.get("description", "").split())


def _table(section: Schema) -> str:
    rows = ["| Key | Type | Default | Description |", "|---|---|---|---|"]
    for key, value in section["properties"].items():
        default = _default(value)
        shown = "(required)" if key in section["required"] else f"`{default}`" if default else ""
        cells = (f"`{key}`", _type(value), shown, value.get("description", _type(value)))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _type(schema: Schema) -> str:
    here = _without_null(schema)
    if "enum" in here:
        return ", ".join(f"`{word}`" for word in here["enum"])
    match here.get("type"):
        case "array":
            return f"list of {_type(here['items']).removeprefix('a ')}"
        case "object":
            return f"map of {_type(here['additionalProperties']).removeprefix('a ')}"
        case "null":
            return "string"
        case str(name):
            return unit_of(here) or name
        case _:
            return "section"


def _default(schema: Schema) -> str:
    """Return the default as it is written in a file; empty if there is none, and for a section."""
    if "$ref" in schema or "default" not in schema:
        return ""
    value = spelled_default(schema)
    return "" if value is None else _spelled(value)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_spelled(item) for item in value)}]"
    if isinstance(value, dict):
        return str(value.get("type", "{}"))
    return '"*"' if value == "*" else str(value)


def _variables_table() -> str:
    rows = ["Environment variables that override the file:", "", "| Variable | Key |", "|---|---|"]
    rows += [f"| `{variable}` | `{section}.{key}` |" for variable, (section, key, _) in NUMBERS.items()]
    rows.append(f"| `{FORCE_REQUIRED}` | adds to `governance.force_required` (comma-separated) |")
    default = "`$XDG_STATE_HOME/taskgate`, else `~/.local/state/taskgate`"
    rows.append(f"| `{STATE_VARIABLE}` | state directory (default {default}) |")
    former = f"Variables with the prefix `{FORMER_PREFIX}` have no effect; `check`, `doctor` and the log report those that are set."
    return "\n".join([*rows, "", former]) + "\n"


def _example_key(schemas: dict[str, Schema], key: str, value: Schema) -> str:
    comment = f"# {value.get('description', '')}\n"
    if key in _SAMPLES:
        return comment + _SAMPLES[key]
    if key == "schema":
        return f"{comment}schema: 1\n"
    if "$ref" in value:
        return f"{comment}# {key}:\n" + "".join(_example_section(schemas, _name_of(value), 1))
    return f"{comment}# {key}:{_with_space(_default(value))}\n"


def _example_section(schemas: dict[str, Schema], name: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, value in schemas[name]["properties"].items():
        about = value.get("description", "")
        # A section that is absent by default may have required keys, so only its name is shown.
        if "$ref" in value:
            yield f"# {indent}{key}:  # {about}\n"
            yield from _example_section(schemas, _name_of(value), depth + 1)
        else:
            yield f"# {indent}{key}:{_with_space(_default(value))}  # {about}\n"


def _with_space(text: str) -> str:
    return f" {text}" if text else ""


if __name__ == "__main__":
    sys.stdout.write(example() if sys.argv[1:] == ["example"] else reference())
