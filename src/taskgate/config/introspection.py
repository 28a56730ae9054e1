"""Which keys a section has and what they mean, read from the model: for suggestions in messages and for the reference."""

from __future__ import annotations

import types
from collections.abc import Mapping as AbstractMapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from taskgate.config.sections import Section


def key_of(name: str, model: type[Section]) -> str:
    """Return the key in the file for an attribute."""
    return model.model_fields[name].alias or name


def keys_of(model: type[Section]) -> list[str]:
    """Return all keys of a section."""
    return [key_of(name, model) for name, field in model.model_fields.items() if not field.exclude]


def meaning_of(key: str, model: type[Section]) -> str:
    """Return the description of a key."""
    fields = model.model_fields.items()
    return next((field.description for name, field in fields if key in (name, field.alias)), "")


def bare(annotation: Any) -> Any:
    """Strip `Annotated` and `| None` from an annotation."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if get_origin(annotation) in (Union, types.UnionType):
            some = [a for a in get_args(annotation) if a is not type(None)]
            if len(some) == 1:
                annotation = some[0]
                continue
        return annotation


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def variants(annotation: Any) -> list[type[Section]]:
    """Return the sections of a union, or an empty list."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [a for a in get_args(annotation) if is_section(a)]
    return []


def inner(annotation: Any) -> Any:
    """Return the item type of a list or map; None for other types."""
    origin = get_origin(annotation)
    if origin in (tuple, list):
        return get_args(annotation)[0]
    if origin is dict or (isinstance(origin, type) and issubclass(origin, AbstractMapping)):
        return get_args(annotation)[1]
    return None


def literal_values(annotation: Any) -> list[str]:
    """Return the values of a Literal, or an empty list."""
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []
