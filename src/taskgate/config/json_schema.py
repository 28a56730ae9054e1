"""The JSON schema of a configuration file, for editors.

Wider than the models: any scalar may be text (`10m`, `16MiB`, `${VARIABLE}`), lists may be comma-separated, and servers
may be in the formats of other programs. `taskgate check` is authoritative.
"""

from __future__ import annotations

from typing import Any

from taskgate.config.model.gateway_file import GatewayFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = "taskgate.schema.json"
EDITOR_COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}"
_SCALARS = ("integer", "number", "boolean", "array")
# Sections that may also be written in the words of other programs.
_FOREIGN = ("GatewayFile", "Server", "Scope", "Rule")
# What only narrows a value that has the right type; the text forms would have to repeat it.
_NARROWING = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minLength", "maxLength", "prefixItems",
    "minItems", "maxItems", "format",
)  # fmt: skip


def configuration_schema() -> dict[str, Any]:
    """The schema of a whole file."""
    schema = _widened(GatewayFile.model_json_schema(by_alias=True))
    return {"$schema": DIALECT, **schema, "title": "Taskgate configuration"}


def _widened(node: Any) -> Any:
    if isinstance(node, list):
        return [_widened(each) for each in node]
    if not isinstance(node, dict):
        return node
    wide = {key: _widened(value) for key, value in node.items() if key not in _NARROWING or isinstance(value, dict)}
    if "oneOf" in wide:
        wide["anyOf"] = wide.pop("oneOf")
    kind = wide.get("type")
    if kind in _SCALARS:
        wide["type"] = [kind, "string"]
    elif kind == "object" and "$ref" not in wide:
        if wide.get("title") in _FOREIGN:
            wide["additionalProperties"] = True
        wide["type"] = ["object", "array", "string", "boolean"]
        wide.pop("required", None)
    if "enum" in wide or "const" in wide:
        allowed = {key: wide.pop(key) for key in ("enum", "const", "type") if key in wide}
        wide["anyOf"] = [allowed, {"type": "string", "pattern": r"\$\{"}, {"type": "boolean"}]
    return wide
