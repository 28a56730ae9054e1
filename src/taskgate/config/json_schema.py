"""The JSON schema of a configuration file, for editors.

Wider than the sections: any scalar may be text (`10m`, `16MiB`, `${VARIABLE}`), lists may be comma-separated, and servers
may be in the formats of other programs. `taskgate check` is authoritative.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.facts.kinds import OPERATORS
from taskgate.core.facts.table import ARGUMENT_NAME, FACTS, Fact
from taskgate.core.settings.durations import format_duration
from taskgate.core.settings.gateway_file import GatewayFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = "taskgate.schema.json"
EDITOR_COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}"
Schema = dict[str, Any]
# Sections that may also be written in the formats of other programs.
_FOREIGN = (GatewayFile.__name__, "Server", "Scope", "Rule")
_ANY_FORM = ["object", "array", "string", "boolean"]
_FOR_VALUES = ("discriminator", "propertyNames", "required", "minItems", "minLength", "pattern", "unit")


def section_schemas() -> dict[str, Schema]:
    """Return the schema of each section by its name, as its class declares it."""
    _, found = msgspec.json.schema_components([GatewayFile], ref_template="#/$defs/{name}")
    words = {f"#/$defs/{name}": {"enum": each["enum"]} for name, each in found.items() if "enum" in each}
    return {name: _with_words(each, words) for name, each in found.items() if "enum" not in each}


def _with_words(schema: Any, words: Schema) -> Any:
    """Return the schema with the words of each enumeration in place of its name."""
    if isinstance(schema, list):
        return [_with_words(each, words) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {key: _with_words(value, words) for key, value in schema.items()}
    return {**words[rest.pop("$ref")], **rest} if rest.get("$ref") in words else rest


def configuration_schema() -> Schema:
    """Return the schema of a whole file."""
    found = {name: _section(name, section) for name, section in sorted(section_schemas().items())}
    root = found.pop(GatewayFile.__name__)
    found["Rule"]["properties"]["when"] |= _when()
    found |= {_condition_name(fact): _condition(fact) for fact in FACTS.values()}
    return {"$schema": DIALECT, "$defs": found, **root, "title": "Taskgate configuration"}


def _when() -> Schema:
    """Return the schema of conditions: a property for each fact, and one for each path of an argument."""
    single = {fact.name: _fact(fact) for fact in FACTS.values() if fact.name != ARGUMENT_NAME}
    arguments = {rf"^{ARGUMENT_NAME}\..": _fact(FACTS[ARGUMENT_NAME])}
    return {"type": "object", "properties": single, "patternProperties": arguments, "additionalProperties": False}


def _fact(fact: Fact) -> Schema:
    return {"$ref": f"#/$defs/{_condition_name(fact)}"}


def _condition_name(fact: Fact) -> str:
    return f"Condition_{fact.name}"


def _condition(fact: Fact) -> Schema:
    """Return the schema of a condition on a fact: a scalar, a list of conditions, or an operator."""
    kind, this, text = fact.kind, _fact(fact), {"type": ["string", "number", "boolean"]}
    operands = {"not": this, "one_of": {"type": "array", "items": this}}
    operators = {
        word: {"description": OPERATORS[word][0].upper() + OPERATORS[word][1:] + ".", **operands.get(word, text)}
        for word in kind.operators
    }
    texts = {"pattern": rf"{kind.pattern}|\$\{{"} if kind.pattern else {}
    return {
        "title": f"Condition on {fact.name}",
        "description": f"Condition on {fact.about}: {kind.forms}.",
        "examples": [fact.example],
        "type": [*text["type"], "array", "object"],
        **texts,
        "items": this,
        "minItems": 1,
        "properties": operators,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }


def _section(name: str, section: Schema) -> Schema:
    keys = {key: _widened(each) for key, each in section["properties"].items()}
    about = {"title": name, "description": " ".join(section.get("description", "").split())}
    return {**about, "type": _ANY_FORM, "properties": keys, "additionalProperties": name in _FOREIGN}


def _widened(schema: Schema) -> Schema:
    """Return the schema of a value with the other forms in which it may be written."""
    wide = {name: value for name, value in schema.items() if name not in _FOR_VALUES}
    if "default" in schema:
        wide["default"] = spelled_default(schema)
    if "enum" in schema:
        del wide["enum"]
        return {
            **wide,
            "anyOf": [{"enum": schema["enum"]}, {"type": "string", "pattern": r"\$\{"}, {"type": "boolean"}],
        }
    if "anyOf" in schema:
        wide["anyOf"] = [_widened(each) for each in schema["anyOf"]]
    match schema.get("type"):
        case "array":
            wide |= {"type": ["array", "string"], "items": _widened(schema["items"])}
        case "object":
            wide |= {"type": _ANY_FORM, "additionalProperties": _widened(schema["additionalProperties"])}
        case "integer" | "number" | "boolean" as name:
            wide["type"] = [name, "string"]
    return wide


def unit_of(schema: Schema) -> str:
    """Return the unit of a number or of an optional one: bytes, milliseconds or duration; empty if it has none."""
    return next((each["unit"] for each in (schema, *schema.get("anyOf", ())) if "unit" in each), "")


def spelled_default(schema: Schema) -> Any:
    """Return the default as it is written in a file."""
    value = schema["default"]
    return format_duration(value) if unit_of(schema) == "duration" and value is not None else value
