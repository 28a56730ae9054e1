"""Sections of a configuration file, declared by annotated classes: validation, defaults, copies and plain values.

A field is declared like `port: Annotated[int, BeforeValidator(whole), Field(ge=0)] = Field(default=7467, description="...")`. The
annotation of a field is evaluated when a file first contains its key, so a start pays only for the keys that are used. That is the
reason for this module: pydantic, which offers the same and much more, took a fifth of the CPU time and memory of a start.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from inspect import get_annotations
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from taskgate.config.model.durations import format_duration

Path = tuple[str | int, ...]
Reader = Callable[[Any], Any]
"""Returns the validated value, or raises Invalid."""
_MISSING: Final[Any] = object()
_HIDDEN: Final = "**********"
_WORDS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class Fault:
    """One mistake. `path` leads to it, `section` is the section whose key is unknown or missing, `words` are the allowed values."""

    __slots__ = ("kind", "message", "path", "section", "words")

    def __init__(
        self,
        kind: Literal["unknown", "missing", "type", "word", "variant", "no variant", "value", "empty"],
        message: str,
        path: Path = (),
        *,
        section: type[Section] | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.message, self.path, self.section, self.words = kind, message, path, section, words

    def below(self, step: str | int) -> Fault:
        return Fault(self.kind, self.message, (step, *self.path), section=self.section, words=self.words)

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


class Invalid(ValueError):
    """A value is not valid; `faults` lists all mistakes."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults

    def below(self, step: str | int) -> Iterator[Fault]:
        """Return the faults as seen from the container of the value."""
        return (fault.below(step) for fault in self.faults)


class BeforeValidator:
    """Converts or refuses (ValueError) a value before its type is checked."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"BeforeValidator({self.function!r})"


class AfterValidator:
    """Converts or refuses (ValueError) a value of the right type."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"AfterValidator({self.function!r})"


class SecretStr:
    """A text that is not shown when it is printed."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        return self._text

    def __len__(self) -> int:
        return len(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return _HIDDEN if self._text else ""

    def __repr__(self) -> str:
        return f"SecretStr({str(self)!r})"


class AwareDatetime(datetime):
    """The type of a field that holds a time with a time zone."""


class FieldInfo:
    """The declaration of one key. In `Annotated` only its limits count."""

    def __init__(
        self,
        default: Any,
        default_factory: Callable[[], Any] | None,
        *,
        alias: str | None,
        description: str,
        discriminator: str | None,
        is_shown: bool,
        exclude: bool,
        limits: dict[str, Any],
    ) -> None:
        self.default, self.default_factory = default, default_factory
        self.alias, self.description, self.discriminator = alias, description, discriminator
        self.is_shown, self.exclude, self.limits = is_shown, exclude, limits
        self._owner: type[Section] | None = None
        self._name = ""
        self._reader: Reader | None = None
        self._full: Any = None

    def own(self, owner: type[Section], name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def full_annotation(self) -> Any:
        """The evaluated annotation."""
        if self._full is None:
            assert self._owner is not None
            found = get_annotations(self._owner)[self._name]
            if isinstance(found, str):
                found = eval(found, vars(sys.modules[self._owner.__module__]))
            self._full = type(None) if found is None else found
        return self._full

    @property
    def annotation(self) -> Any:
        """The annotation without what is attached to it."""
        full = self.full_annotation
        return get_args(full)[0] if get_origin(full) is Annotated else full

    @property
    def metadata(self) -> list[Any]:
        """What is attached to the annotation: validators and limits."""
        full = self.full_annotation
        attached = list(get_args(full)[1:]) if get_origin(full) is Annotated else []
        return [*attached, self] if self.limits else attached

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            self._reader = _with_metadata(_reader(self.annotation, self.discriminator), self.metadata)
        return self._reader

    def is_required(self) -> bool:
        return self.default is _MISSING and self.default_factory is None

    def get_default(self) -> Any:
        return self.default if self.default_factory is None else self.default_factory()


def Field(
    *,
    default: Any = _MISSING,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    description: str = "",
    discriminator: str | None = None,
    repr: bool = True,
    exclude: bool = False,
    ge: Any = None,
    gt: Any = None,
    le: Any = None,
    lt: Any = None,
    min_length: int | None = None,
    pattern: str | None = None,
) -> Any:
    """Declare a key. `alias` is its name in the file, `discriminator` the key that selects the variant of a union of sections."""
    given = {"ge": ge, "gt": gt, "le": le, "lt": lt, "min_length": min_length, "pattern": pattern}
    return FieldInfo(
        default,
        default_factory,
        alias=alias,
        description=description,
        discriminator=discriminator,
        is_shown=repr,
        exclude=exclude,
        limits={name: value for name, value in given.items() if value is not None},
    )


class model_validator:
    """Marks a method that checks a section after its fields; it raises ValueError."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.function = function


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Section:
    """Base class of sections: immutable, and unknown keys are errors."""

    model_fields: ClassVar[dict[str, FieldInfo]] = {}
    _checks: ClassVar[tuple[model_validator, ...]] = ()
    _given: frozenset[str]

    def __init_subclass__(cls) -> None:
        fields = dict(cls.model_fields)
        for name in get_annotations(cls):
            field = cls.__dict__.get(name, _MISSING)
            if not isinstance(field, FieldInfo):
                message = f"{cls.__name__}.{name} is not declared with Field"
                raise TypeError(message)
            field.own(cls, name)
            fields[name] = field
            delattr(cls, name)
        cls.model_fields = fields
        cls._checks += tuple(value for value in cls.__dict__.values() if isinstance(value, model_validator))

    def __init__(self, **values: Any) -> None:
        made = self.model_validate(values)
        self.__dict__.update(made.__dict__)

    @classmethod
    def model_construct(cls) -> Self:
        """Return the section with its defaults, without validation."""
        return cls._made({name: field.get_default() for name, field in cls.model_fields.items()}, frozenset())

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Return the section for plain values. Raises Invalid with all mistakes."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise Invalid(Fault("type", "must be a map of keys"))
        declared = _known.get(cls) or _declared(cls)
        values = declared.defaults.copy()
        faults: list[Fault] = []
        given: set[str] = set()
        for name, factory in declared.factories:
            values[name] = factory()
        readers, by_key = declared.readers, declared.by_key
        for key, item in value.items():
            field = by_key.get(key)
            if field is None or field in given:
                faults.append(Fault("unknown", "unknown key", (str(key),), section=cls))
                continue
            given.add(field)
            try:
                values[field] = (readers.get(field) or declared.reader(cls, field))(item)
            except Invalid as invalid:
                faults.extend(invalid.below(key))
        if not given >= declared.required:
            absent = (cls.model_fields[name].alias or name for name in declared.required if name not in given)
            faults.extend(Fault("missing", "required key is missing", (key,), section=cls) for key in sorted(absent))
        if faults:
            raise Invalid(*faults)
        made = cls._made(values, declared.required if given == declared.required else frozenset(given))
        for check in cls._checks:
            _applied(check.function, made)
        return made

    @classmethod
    def _made(cls, values: dict[str, Any], given: frozenset[str]) -> Self:
        made = cls.__new__(cls)
        values["_given"] = given
        _set_attributes(made, "__dict__", values)
        return made

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """Return a copy with other values, which are not validated."""
        return self._made({**dict(self), **update}, self._given | update.keys())

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        exclude_unset: bool = False,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return plain values by attribute name; `json` also converts durations, times and secrets to text."""
        values, names = self.__dict__, _declared(type(self)).shown
        if exclude_unset:
            names = tuple(name for name in names if name in self._given)
        if exclude or include is not None:
            names = tuple(name for name in names if name not in exclude and (include is None or name in include))
        shown = {name: values[name] for name in names}
        if not _PLAIN_TYPES.issuperset(map(type, shown.values())):
            for name, value in shown.items():
                shown[name] = _plain(value, mode, exclude_unset)
        return shown

    def model_dump_json(self, *, exclude: Collection[str] = ()) -> str:
        return json.dumps(self.model_dump(mode="json", exclude=exclude), separators=(",", ":"), ensure_ascii=False)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        values = self.__dict__
        return ((name, values[name]) for name in self.model_fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash((type(self), *(value for _, value in self)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self if self.model_fields[name].is_shown)
        return f"{type(self).__name__}({shown})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        message = f"{type(self).__name__} is frozen"
        raise AttributeError(message)

    def __delattr__(self, name: str) -> NoReturn:
        message = f"{type(self).__name__} is frozen"
        raise AttributeError(message)


class _Declared(NamedTuple):
    """The declarations of a section, as validation uses them."""

    by_key: dict[Any, str]
    """The name of the field for each key."""
    readers: dict[str, Reader]
    """Those that a file needed so far."""
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]
    required: frozenset[str]
    shown: tuple[str, ...]

    def reader(self, section: type[Section], name: str) -> Reader:
        found = self.readers[name] = section.model_fields[name].reader
        return found


_known: Final = dict[Any, _Declared]()
_set_attributes: Final = object.__setattr__
_PLAIN_TYPES: Final = frozenset({str, type(None)})


def _declared(section: type[Section]) -> _Declared:
    known = _known.get(section)
    if known is None:
        known = _known[section] = _read_declaration(section.model_fields)
    return known


def _read_declaration(fields: dict[str, FieldInfo]) -> _Declared:
    factories = {name: field.default_factory for name, field in fields.items() if field.default_factory is not None}
    return _Declared(
        {
            **{name: name for name in fields},
            **{field.alias: name for name, field in fields.items() if field.alias is not None},
        },
        {},
        {name: field.default for name, field in fields.items() if field.default is not _MISSING},
        tuple(factories.items()),
        frozenset(name for name, field in fields.items() if field.is_required()),
        tuple(name for name, field in fields.items() if not field.exclude),
    )


def as_json(value: Any) -> Any:
    """Return a value of a field as JSON values."""
    return _plain(value, "json", False)


def _plain(value: Any, mode: Literal["python", "json"], exclude_unset: bool) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode=mode, exclude_unset=exclude_unset)
    if isinstance(value, dict):
        return {key: _plain(each, mode, exclude_unset) for key, each in value.items()}
    if isinstance(value, tuple):
        items = (_plain(each, mode, exclude_unset) for each in value)
        return list(items) if mode == "json" else tuple(items)
    if mode == "python" or value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, timedelta):
        return iso_duration(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)


def iso_duration(length: timedelta) -> str:
    """Return a duration as ISO 8601 text, for example `PT10M`."""
    seconds, micro = length.days * 86_400 + length.seconds, length.microseconds
    days, seconds = divmod(seconds, 86_400)
    years, days = divmod(days, 365)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    second = f"{seconds}.{micro:06d}".rstrip("0") if micro else str(seconds) if seconds else ""
    date = "".join(f"{count}{unit}" for count, unit in ((years, "Y"), (days, "D")) if count)
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M"), (second, "S")) if count)
    if not date and not time:
        return "PT0S"
    return f"P{date}{'T' if time else ''}{time}"


def _applied(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Invalid:
        raise
    except ValueError as error:
        raise Invalid(Fault("value", str(error))) from None


def _with_metadata(read: Reader, metadata: list[Any]) -> Reader:
    """Add the validators and limits of an annotation, in the order of declaration. The last one before the type runs first."""
    for each in metadata:
        if isinstance(each, BeforeValidator):
            read = _before(each.function, read)
        elif isinstance(each, AfterValidator):
            read = _after(each.function, read)
        elif isinstance(each, FieldInfo) and each.limits:
            read = _limited(each.limits, read)
    return read


def _before(function: Callable[[Any], Any], read: Reader) -> Reader:
    return lambda value: read(_applied(function, value))


def _after(function: Callable[[Any], Any], read: Reader) -> Reader:
    return lambda value: _applied(function, read(value))


def _limited(limits: dict[str, Any], read: Reader) -> Reader:
    def limited(given: Any) -> Any:
        value = read(given)
        for name, limit in limits.items():
            message = None if value is None else _LIMITS[name](value, limit)
            if message is not None:
                raise Invalid(Fault("empty" if name == "min_length" else "value", message))
        return value

    return limited


def _bound(words: str, holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], str | None]:
    def fault(value: Any, limit: Any) -> str | None:
        shown = format_duration(limit) if isinstance(limit, timedelta) else limit
        return None if holds(value, limit) else f"{words} {shown}"

    return fault


_LIMITS: Final[dict[str, Callable[[Any, Any], str | None]]] = {
    "ge": _bound("must be at least", lambda value, limit: value >= limit),
    "gt": _bound("must be more than", lambda value, limit: value > limit),
    "le": _bound("must be at most", lambda value, limit: value <= limit),
    "lt": _bound("must be less than", lambda value, limit: value < limit),
    "min_length": lambda value, limit: "must not be empty" if len(value) < limit else None,
    "pattern": lambda value, limit: None if re.search(limit, value) else f"does not match the pattern {limit}",
}


def _reader(annotation: Any, discriminator: str | None = None) -> Reader:
    """Return the reader for a type."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation.model_validate
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, *metadata = arguments
        tag = next((each.discriminator for each in metadata if isinstance(each, FieldInfo)), None)
        return _with_metadata(_reader(kind, tag), metadata)
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        return _list_of(_reader(arguments[0]))
    if origin is dict:
        return _map_of(_reader(arguments[0]), _reader(arguments[1]))
    if origin in (Union, types.UnionType):
        some = [each for each in arguments if each is not type(None)]
        if len(some) == 1:
            return _optional(_reader(some[0]))
        if discriminator is not None and len(some) == len(arguments):
            return _variant(discriminator, {each.model_fields[discriminator].default: each for each in some})
    message = f"{annotation} is not supported"
    raise TypeError(message)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Invalid(Fault("type", "must be text"))


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = _WORDS.get(str(value).lower()) if isinstance(value, (str, int)) else None
    if found is None:
        raise Invalid(Fault("type", "must be true or false"))
    return found


def _whole_number(value: Any) -> int:
    try:
        if isinstance(value, (str, int, float)) and (number := int(value)) == (
            value if isinstance(value, float) else number
        ):
            return number
    except (ValueError, OverflowError):
        pass
    raise Invalid(Fault("type", "must be a whole number"))


def _number(value: Any) -> float:
    try:
        if isinstance(value, (str, int, float)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise Invalid(Fault("type", "must be a number"))


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    raise Invalid(Fault("type", "must be a duration"))


def _time(value: Any) -> datetime:
    """Read a time with a time zone, or seconds (from 20,000,000,000 on: milliseconds) since 1970."""
    try:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}(\.\d{1,6})?", value, re.ASCII):
            number = float(value)
            return datetime.fromtimestamp(number / 1000 if abs(number) > 2e10 else number, UTC)
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        if found.tzinfo is not None:
            return found
    except (ValueError, TypeError, OverflowError, OSError):
        pass
    raise Invalid(Fault("type", "must be a time with a time zone, for example 2027-01-31T00:00:00Z"))


def _nothing(value: Any) -> None:
    if value is not None:
        raise Invalid(Fault("type", "must not be set"))


def _secret(value: Any) -> SecretStr:
    return value if isinstance(value, SecretStr) else SecretStr(_text(value))


_SCALARS: Final[dict[Any, Reader]] = {
    str: _text,
    bool: _truth,
    int: _whole_number,
    float: _number,
    timedelta: _duration,
    AwareDatetime: _time,
    SecretStr: _secret,
    type(None): _nothing,
    Any: lambda value: value,
}


def _one_of(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value in words:
            return value
        shown = tuple(map(str, words))
        raise Invalid(Fault("word", f"must be one of {', '.join(shown)}", words=shown))

    return read


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _list_of(read: Reader) -> Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise Invalid(Fault("type", "must be a list"))
        try:
            return tuple(map(read, value))
        except Invalid:
            faults = list[Fault]()
        for index, item in enumerate(value):
            try:
                read(item)
            except Invalid as invalid:
                faults.extend(invalid.below(index))
        raise Invalid(*faults)

    return read_all


def _map_of(read_key: Reader, read: Reader) -> Reader:
    def read_all(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Invalid(Fault("type", "must be a map of keys"))
        try:
            return {read_key(key): read(item) for key, item in value.items()}
        except Invalid:
            faults = list[Fault]()
        for key, item in value.items():
            for check, content in ((read_key, key), (read, item)):
                try:
                    check(content)
                except Invalid as invalid:
                    faults.extend(invalid.below(key if isinstance(key, (str, int)) else str(key)))
        raise Invalid(*faults)

    return read_all


def _variant(key: str, variants: dict[str, type[Section]]) -> Reader:
    def read(value: Any) -> Section:
        if isinstance(value, Section) and type(value) in variants.values():
            return value
        if not isinstance(value, dict):
            raise Invalid(Fault("type", "must be a map of keys"))
        if key not in value:
            raise Invalid(Fault("no variant", f"has no {key}"))
        found = variants.get(value[key]) if isinstance(value[key], str) else None
        if found is None:
            raise Invalid(Fault("variant", f"must be one of {', '.join(variants)}", words=tuple(variants)))
        return found.model_validate(value)

    return read
