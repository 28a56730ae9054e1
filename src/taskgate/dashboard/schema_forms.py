"""HTML forms generated from JSON schemas, and the values of submitted forms.

Schemas come from servers and are untrusted: a property that does not fit a simple field becomes a JSON field, and the number of
fields is limited. The whole object can always be entered as JSON instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from taskgate.core.wire import MalformedJson
from taskgate.dashboard.routes import Visit
from taskgate.dashboard.web import MAX_FORM_FIELDS, read_json

MAX_FIELDS: Final = 100
MAX_OPTIONS: Final = 200
LONGEST_TEXT: Final = 2_000
WHOLE: Final = "whole-json"
PREFIX: Final = "f."
_KINDS: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


class Field(msgspec.Struct, frozen=True):
    name: str
    label: str
    kind: str
    """text, integer, number, boolean, choice, several or json"""
    required: bool
    help: str = ""
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def form_name(self) -> str:
        return PREFIX + self.name


class Form(msgspec.Struct, frozen=True):
    fields: tuple[Field, ...]
    left_out: int
    """Number of fields that are not shown."""


class BadForm(ValueError):
    """A submitted value does not match its field."""


def form_of(schema: Any) -> Form:
    properties = schema.get("properties") if type(schema) is dict else None
    if type(properties) is not dict:
        return Form((), 0)
    required = schema.get("required")
    needed = {name for name in required if type(name) is str} if type(required) is list else set()
    shown = list(properties.items())[:MAX_FIELDS]
    return Form(tuple(_field(name, about, name in needed) for name, about in shown), len(properties) - len(shown))


def _field(name: str, about: Any, required: bool) -> Field:
    about = about if type(about) is dict else {}
    title, text, default = about.get("title"), about.get("description"), about.get("default")
    options = _options(about)
    kind = _KINDS.get(str(about.get("type")), "json")
    if options:
        kind = "several" if about.get("type") == "array" else "choice"
    value = ""
    if default is not None:
        value = default if type(default) is str else msgspec.json.encode(default).decode()
    return Field(
        name=name,
        label=title[:200] if type(title) is str and title else name,
        kind=kind,
        required=required,
        help=text[:LONGEST_TEXT] if type(text) is str else "",
        value=value[:LONGEST_TEXT],
        options=options,
    )


def _options(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Value and label of each option of a single or multiple choice."""
    items = about.get("items")
    source = items if about.get("type") == "array" and type(items) is dict else about
    if about.get("type") == "array" and source is about:
        return ()
    titled = source.get("oneOf") or source.get("anyOf")
    if type(titled) is list and titled and all(type(o) is dict and type(o.get("const")) is str for o in titled):
        return tuple((o["const"], str(o.get("title", o["const"]))[:200]) for o in titled[:MAX_OPTIONS])
    plain, names = source.get("enum"), source.get("enumNames")
    if type(plain) is not list or not all(type(one) is str for one in plain):
        return ()
    labels = names if type(names) is list and len(names) == len(plain) else plain
    return tuple((one, str(label)[:200]) for one, label in zip(plain, labels, strict=True))[:MAX_OPTIONS]


def filled_in(schema: Any, sent: Mapping[str, list[str]]) -> dict[str, Any]:
    """The object that a submitted form describes, without empty optional fields. Raises BadForm."""
    whole = (sent.get(WHOLE) or [""])[0].strip()
    if whole:
        return _object(whole)
    found: dict[str, Any] = {}
    for one in form_of(schema).fields:
        given = sent.get(one.form_name, [])
        if one.kind == "boolean":
            if one.required or (given and given[0] != ""):
                found[one.name] = bool(given) and given[0] == "true"
        elif one.kind == "several":
            if given or one.required:
                found[one.name] = given
        elif given and (given[0] != "" or (one.required and one.kind == "text")):
            found[one.name] = _value(one, given[0])
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text.encode("utf-8", "replace"))
    except MalformedJson as problem:
        raise BadForm(problem.message) from None
    if type(value) is not dict:
        raise BadForm("Enter a JSON object.")
    return value


def _value(one: Field, text: str) -> Any:
    if one.kind == "choice" and text not in (value for value, _ in one.options):
        raise BadForm(f"{one.label} must be one of the listed options.")
    try:
        match one.kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "json":
                return read_json(text.encode("utf-8", "replace"))
            case _:
                return text
    except (ValueError, MalformedJson):
        kind = {"integer": "a whole number", "number": "a number"}.get(one.kind, "JSON")
        raise BadForm(f"{one.label} must be {kind}.") from None


def form_values(visit: Visit) -> dict[str, list[str]]:
    """All values of each field, for forms with multiple choices."""
    try:
        text = visit.request.body.decode("utf-8", "replace")
        return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        return {}
