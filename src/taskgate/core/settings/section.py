"""`Section`, the base class of the sections of a configuration file.

A section is declared once, as the value that the program uses: `port: Annotated[int, Meta(ge=0, description="...")] = 7467`.
`extra` of a `Meta` may have:

- `read`: a function from the text in the file (of a list or map: from its converted items) to the value. It raises ValueError,
  whose text may end with `; ` and a correction.
- `one`: the list may also be a single text.
- `plain`: texts, lists and maps are taken as they are written.
- `secret`: the value is not shown.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import Meta

from taskgate.core.settings.durations import format_duration

SECRET: Final = {"secret": True}
DURATION: Final = {"unit": "duration"}
_HIDDEN: Final = "[hidden]"


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of one map of the file. `__post_init__` checks what concerns several keys, and raises ValueError."""

    def __repr__(self) -> str:
        values = (f"{each.name}={_HIDDEN if each.is_secret else each.value_in(self)!r}" for each in members(type(self)))
        return f"{type(self).__name__}({', '.join(values)})"


class Member(msgspec.Struct, frozen=True):
    """One key of a section: its name in the file and in the program, its type without None, and what is attached to that."""

    key: str
    name: str
    type: Any
    attached: tuple[Meta, ...]
    default: Any
    required: bool

    def value_in(self, section: Section) -> Any:
        return getattr(section, self.name)

    @property
    def is_secret(self) -> bool:
        return any("secret" in (meta.extra or ()) for meta in self.attached)

    @property
    def description(self) -> str:
        return next((meta.description for meta in self.attached if meta.description), "")


@cache
def members(section: type[Section]) -> tuple[Member, ...]:
    """Return the keys of a section. This evaluates its annotations."""
    return tuple(map(_member, msgspec.structs.fields(section)))


def _member(field: msgspec.structs.FieldInfo) -> Member:
    kind, attached = taken_apart(field.type)
    factory = field.default_factory
    return Member(
        key=field.encode_name,
        name=field.name,
        type=kind,
        attached=attached,
        default=field.default if factory is msgspec.NODEFAULT else factory(),
        required=field.required,
    )


def taken_apart(annotation: Any) -> tuple[Any, tuple[Meta, ...]]:
    """Return the type of an annotation without None, and what is attached to it."""
    attached = list[Meta]()
    while get_origin(annotation) is Annotated or types.NoneType in get_args(annotation):
        if get_origin(annotation) is Annotated:
            attached += annotation.__metadata__
            annotation = annotation.__origin__
        else:
            (annotation,) = (each for each in get_args(annotation) if each is not types.NoneType)
    return annotation, tuple(attached)


def keys_of(section: type[Section]) -> list[str]:
    tag = section.__struct_config__.tag_field
    return [*([] if tag is None else [tag]), *(each.key for each in members(section))]


def read_by(function: Callable[[Any], Any]) -> Meta:
    return Meta(extra={"read": function})


def as_written(section: Section) -> dict[str, Any]:
    """Return the keys whose values are not the defaults, in the form of the file."""
    tag, field = section.__struct_config__.tag, section.__struct_config__.tag_field
    values = {} if field is None else {field: tag}
    for each in members(type(section)):
        value = each.value_in(section)
        if value != each.default:
            is_duration = any(meta.extra_json_schema == DURATION for meta in each.attached)
            values[each.key] = format_duration(value) if is_duration and value is not None else _written(value)
    return values


def _written(value: Any) -> Any:
    match value:
        case Section():
            return as_written(value)
        case dict():
            return {key: _written(each) for key, each in value.items()}
        case tuple():
            return [_written(each) for each in value]
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case _:
            return value
