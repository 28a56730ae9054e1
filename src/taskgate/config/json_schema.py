"""The JSON schema of a configuration file, for editors.

Wider than the models: any scalar may be text (`10m`, `16MiB`, `${VARIABLE}`), lists may be comma-separated, and servers
may be in the formats of other programs. `taskgate check` is authoritative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from taskgate.config.introspection import bare, inner, is_section, keys_of, literal_values, variants
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.sections import FieldInfo, Section, as_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = "taskgate.schema.json"
EDITOR_COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}"
# Sections that may also be written in the formats of other programs.
_FOREIGN = (GatewayFile.__name__, "Server", "Scope", "Rule")
_NAMES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number"}
_ANY_FORM = ["object", "array", "string", "boolean"]


def configuration_schema() -> dict[str, Any]:
    """The schema of a whole file."""
    sections = {section.__name__: section for section in _all_sections(GatewayFile)}
    found = {name: _section(section) for name, section in sorted(sections.items())}
    root = found.pop(GatewayFile.__name__)
    return {"$schema": DIALECT, "$defs": found, **root, "title": "Taskgate configuration"}


def _all_sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        held = bare(field.annotation)
        while inner(held) is not None:
            held = bare(inner(held))
        for below in [held] if is_section(held) else variants(held):
            yield from _all_sections(below)


def _section(section: type[Section]) -> dict[str, Any]:
    return {
        "title": section.__name__,
        "description": " ".join((section.__doc__ or "").split()),
        "type": _ANY_FORM,
        "properties": dict(zip(keys_of(section), map(_field, _shown(section)), strict=True)),
        "additionalProperties": section.__name__ in _FOREIGN,
    }


def _shown(section: type[Section]) -> Iterator[FieldInfo]:
    return (field for field in section.model_fields.values() if not field.exclude)


def _field(field: FieldInfo) -> dict[str, Any]:
    default = {} if field.is_required() or field.default_factory else {"default": as_json(field.default)}
    kind = _kind(field.annotation)
    if default.get("default", "") is None:
        kind = {"anyOf": [kind, {"type": "null"}]}
    return {"description": field.description, **kind, **default}


def _kind(annotation: Any) -> dict[str, Any]:
    """Return the schema of a type; text is accepted for every scalar and list."""
    here = bare(annotation)
    if literal_values(here):
        allowed = [{"enum": list(get_args(here))}, {"type": "string", "pattern": r"\$\{"}, {"type": "boolean"}]
        return {"anyOf": allowed}
    if is_section(here):
        return {"$ref": f"#/$defs/{here.__name__}"}
    if several := variants(here):
        return {"anyOf": [_kind(each) for each in several]}
    if (item := inner(here)) is not None:
        if get_origin(here) is tuple:
            return {"type": ["array", "string"], "items": _kind(item)}
        return {"type": _ANY_FORM, "additionalProperties": _kind(item)}
    if here is type(None):
        return {"type": "null"}
    name = _NAMES.get(here)
    return {"type": [name, "string"] if name else "string"}
