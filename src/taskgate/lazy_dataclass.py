"""`dataclass` as in the standard library, but methods are compiled when they are first used, not when the class is created.

The standard library compiles six functions for every class. With 360 classes that was a third of the CPU time of a start and
several megabytes, and most of these functions are never called. A class made here is a dataclass for `fields`, `replace`, `asdict`
and other libraries. A frozen one with slots is also created faster: its fields are set by their slots.

Type checkers see the decorator of the standard library. `InitVar`, `KW_ONLY`, `order` and `weakref_slot` are not supported.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

__all__ = ["dataclass"]


@dataclasses.dataclass
class _Sample:
    value: int


_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"
_FIELD_KIND: Any = getattr(_Sample, _FIELDS)["value"]._field_type


class _Parameters(NamedTuple):
    """The options of a class; the standard library reads `frozen`."""

    repr: bool
    eq: bool
    frozen: bool


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, kw_only=False, slots=False):
        """Add `__init__`, `__repr__`, `__eq__` and `__hash__` by the annotations of a class."""
        parameters = _Parameters(repr, eq, frozen)

        def decorated(found):
            return _processed(found, parameters, kw_only, slots)

        return decorated if cls is None else decorated(cls)


class _Compiled:
    """A method that is compiled when it is first read. It then replaces itself in its class."""

    __slots__ = ("_compile", "_name", "_owner")

    _owner: type
    _name: str

    def __init__(self, compile_method: Callable[[type], FunctionType]) -> None:
        self._compile = compile_method

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._compile(self._owner)
        method.__qualname__, method.__module__ = f"{self._owner.__qualname__}.{self._name}", self._owner.__module__
        setattr(self._owner, self._name, method)
        return method if instance is None else method.__get__(instance, owner)


def _processed(cls: type, parameters: _Parameters, kw_only: bool, slots: bool) -> type:
    given = dict(cls.__dict__)
    fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        fields.update({name: field for name, field in getattr(base, _FIELDS, {}).items() if _is_real(field)})
    for name, annotation in inspect.get_annotations(cls).items():
        if not (isinstance(annotation, str) and annotation.startswith("ClassVar")):
            fields[name] = _own_field(cls, given, name, annotation, kw_only)
    added: dict[str, Any] = {
        "__match_args__": tuple(field.name for field in fields.values() if field.init and not field.kw_only),
        **_methods(parameters, slots),
    }
    content = {**added, **given, _FIELDS: fields, _PARAMS: parameters}
    if parameters.eq and given.get("__hash__") is None:
        # A class with `__eq__` in its body has the entry None, which does not count as its own `__hash__`.
        content["__hash__"] = _Compiled(_compiled_hash) if parameters.frozen else None
    return _with_slots(cls, content) if slots else _with_attributes(cls, content)


def _is_real(field: Field[Any]) -> bool:
    return field._field_type is _FIELD_KIND  # type: ignore[attr-defined]


def _own_field(cls: type, given: dict[str, Any], name: str, annotation: Any, kw_only: bool) -> Field[Any]:
    """Return the field for one annotation; its default stays an attribute of the class."""
    default: Any = getattr(cls, name, MISSING)
    if isinstance(default, MemberDescriptorType):  # the slot of a base class
        default = MISSING
    if isinstance(default, Field):
        field = default
        if field.default is MISSING:
            del given[name]
        else:
            given[name] = field.default
    else:
        field = dataclasses.field(default=default)
    if field.default.__class__.__hash__ is None:
        message = f"mutable default {type(field.default)} for field {name} is not allowed: use default_factory"
        raise ValueError(message)
    field.name, field.type = name, annotation
    field._field_type = _FIELD_KIND  # type: ignore[attr-defined]
    if field.kw_only is MISSING:
        field.kw_only = kw_only
    return field


def _methods(parameters: _Parameters, slots: bool) -> dict[str, Any]:
    methods: dict[str, Any] = {"__init__": _Compiled(_compiled_init)}
    if parameters.repr:
        methods["__repr__"] = _representation
    if parameters.eq:
        methods["__eq__"] = _Compiled(_compiled_eq)
    if parameters.frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    return methods


def _with_slots(cls: type, content: dict[str, Any]) -> type:
    """Return the class with a slot for each field. Slots cannot be added to a class that exists."""
    fields = content[_FIELDS]
    inherited = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    content = {name: value for name, value in content.items() if name not in fields}
    content["__slots__"] = tuple(name for name in fields if name not in inherited)
    content.pop("__dict__", None)
    content.pop("__weakref__", None)
    made = type(cls)(cls.__name__, cls.__bases__, content)
    made.__qualname__ = cls.__qualname__
    return made


def _with_attributes(cls: type, content: dict[str, Any]) -> type:
    for name in set(cls.__dict__) - set(content):
        delattr(cls, name)
    for name, value in content.items():
        if cls.__dict__.get(name, MISSING) is not value:
            setattr(cls, name, value)
            if isinstance(value, _Compiled):
                value.__set_name__(cls, name)
    return cls


def _fields(cls: type) -> Iterator[Field[Any]]:
    fields: dict[str, Field[Any]] = getattr(cls, _FIELDS)
    return iter(fields.values())


def _compiled(name: str, parameters: list[str], lines: list[str], names: dict[str, Any]) -> FunctionType:
    body = "\n ".join(lines or ["pass"])
    exec(f"def {name}({', '.join(parameters)}):\n {body}", names)
    made: FunctionType = names.pop(name)
    return made


def _compiled_init(cls: type) -> FunctionType:
    names: dict[str, Any] = {"__MISSING": MISSING, "__setattr": object.__setattr__}
    by_position, by_keyword, lines = list[str](), list[str](), list[str]()
    is_frozen = getattr(cls, _PARAMS).frozen
    for field in _fields(cls):
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not MISSING:
            names[f"__factory_{name}"] = field.default_factory
            parameter = f"{name}=__MISSING"
            value = f"__factory_{name}() if {name} is __MISSING else {name}" if field.init else f"__factory_{name}()"
        elif field.default is not MISSING:
            names[f"__default_{name}"] = field.default
            parameter = f"{name}=__default_{name}"
            value = name if field.init else f"__default_{name}"
        elif not field.init:
            continue
        if field.init:
            (by_keyword if field.kw_only else by_position).append(parameter)
        lines.append(_assignment(cls, name, value, is_frozen, names))
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    made = _compiled("__init__", ["self", *by_position, *(["*", *by_keyword] if by_keyword else [])], lines, names)
    made.__annotations__ = {field.name: field.type for field in _fields(cls) if field.init} | {"return": None}
    return made


def _assignment(cls: type, name: str, value: str, is_frozen: bool, names: dict[str, Any]) -> str:
    if not is_frozen:
        return f"self.{name} = {value}"
    slot = getattr(cls, name, None)
    if not isinstance(slot, MemberDescriptorType):
        return f"__setattr(self, {name!r}, {value})"
    # Much faster than object.__setattr__, which has to find the slot first.
    names[f"__set_{name}"] = slot.__set__
    return f"__set_{name}(self, {value})"


def _compiled_eq(cls: type) -> FunctionType:
    compared = [field.name for field in _fields(cls) if field.compare]
    of_self, of_other = (_tuple(owner, compared) for owner in ("self", "other"))
    lines = ["if other.__class__ is self.__class__:", f" return {of_self} == {of_other}", "return NotImplemented"]
    return _compiled("__eq__", ["self", "other"], lines, {})


def _compiled_hash(cls: type) -> FunctionType:
    hashed = [field.name for field in _fields(cls) if (field.compare if field.hash is None else field.hash)]
    return _compiled("__hash__", ["self"], [f"return hash({_tuple('self', hashed)})"], {})


def _tuple(owner: str, names: list[str]) -> str:
    return "(" + "".join(f"{owner}.{name}, " for name in names) + ")"


@recursive_repr("...")
def _representation(self: object) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in _fields(type(self)) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    if _is_frozen_name(type(self), name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: object, name: str) -> None:
    if _is_frozen_name(type(self), name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen_name(cls: type, name: str) -> bool:
    """Return whether a name is frozen: every name of a frozen dataclass, and the inherited fields in an ordinary subclass."""
    return _PARAMS in cls.__dict__ or name in getattr(cls, _FIELDS)


def _state(self: object) -> list[Any]:
    return [getattr(self, field.name) for field in _fields(type(self))]


def _restore(self: object, state: list[Any]) -> None:
    for field, value in zip(_fields(type(self)), state, strict=True):
        object.__setattr__(self, field.name, value)
