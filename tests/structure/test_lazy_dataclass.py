"""Classes of `taskgate.lazy_dataclass` behave like those of the standard library, and all of the gateway's are made by it."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import taskgate
from taskgate.lazy_dataclass import dataclass

Decorator = Callable[..., Callable[[type], Any]]
OPTIONS: list[dict[str, bool]] = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "repr": False},
]


def shape(decorator: Decorator, options: dict[str, bool]) -> Any:
    """Return a class with every kind of field that the gateway uses."""

    @decorator(**options)
    class Shape:
        """A shape."""

        KIND: ClassVar[str] = "kind"
        name: str
        size: int = 3
        parts: tuple[int, ...] = field(default=(), repr=False)
        notes: list[str] = field(default_factory=list, compare=False)
        late: int = field(default=7, kw_only=True)
        hidden: int = field(default=1, init=False)
        made: list[int] = field(default_factory=list, init=False, compare=False)

        def doubled(self) -> int:
            return self.size * 2

    return Shape


def heir(decorator: Decorator, options: dict[str, bool]) -> Any:
    """Return a subclass with `__post_init__` and a method of its own for each generated one."""
    base = shape(decorator, options)

    @decorator(**options)
    class Heir(base):  # type: ignore[misc, valid-type]
        more: str = "more"

        def __post_init__(self) -> None:
            object.__setattr__(self, "hidden", 2)

        def __repr__(self) -> str:
            return "own"

    return Heir


def outcome(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("make", [shape, heir])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_classes_behave_as_in_the_standard_library(options: dict[str, bool], make: Callable[..., Any]) -> None:
    ours, theirs = make(dataclass, options), make(dataclasses.dataclass, options)
    probes: list[Callable[[Any], object]] = [
        lambda made: made(name="a"),
        lambda made: made("a", 2),
        lambda made: made(),
        lambda made: made(name="a", unknown=1),
        lambda made: made(name="a") == made(name="a"),
        lambda made: made(name="a") == made(name="b"),
        lambda made: made(name="a", notes=["x"]) == made(name="a"),
        lambda made: made(name="a") == 3,
        lambda made: hash(made(name="a")) == hash(made(name="a")),
        lambda made: setattr(made(name="a"), "size", 4),
        lambda made: delattr(made(name="a"), "name"),
        lambda made: replace(made(name="a"), size=5).size,
        lambda made: replace(made(name="a"), hidden=5),
        lambda made: dataclasses.asdict(made(name="a", notes=["x"])),
        lambda made: dataclasses.astuple(made(name="a")),
        lambda made: copy.deepcopy(made(name="a", notes=["x"])).notes,
        lambda made: copy.copy(made(name="a", notes=["x"])).notes,
        lambda made: [(found.name, found.type, found.kw_only) for found in dataclasses.fields(made)],
        lambda made: (made.__match_args__, made.__doc__ if make is shape else None, made.KIND, made.__qualname__),
        lambda made: getattr(made, "__slots__", None),
        lambda made: hasattr(made(name="a"), "__dict__"),
        lambda made: [(kind.name, kind.kind, kind.annotation) for kind in inspect.signature(made).parameters.values()],
        lambda made: made(name="a").doubled(),
        lambda made: (made(name="a").hidden, made(name="a").late, made(name="a").made),
        lambda made: made(name="a").notes is made(name="a").notes,
        lambda made: made.__dataclass_params__.frozen,
    ]
    for number, probe in enumerate(probes):
        found, expected = (outcome(lambda probe=probe, made=made: probe(made)) for made in (ours, theirs))  # type: ignore[misc]
        if hasattr(expected, "__dataclass_fields__") and not options.get("repr", True):
            found, expected = type(found).__qualname__, type(expected).__qualname__
        assert repr(found) == repr(expected), number


def test_method_is_compiled_at_first_use_only() -> None:
    made = shape(dataclass, {"frozen": True, "slots": True})
    assert not inspect.isfunction(vars(made)["__init__"])
    made(name="a")
    assert inspect.isfunction(vars(made)["__init__"])
    assert not inspect.isfunction(vars(made)["__eq__"])


def test_name_that_is_no_field_cannot_be_assigned_to_frozen_value() -> None:
    with pytest.raises(FrozenInstanceError):
        shape(dataclass, {"frozen": True, "slots": True})(name="a").other = 1


def test_recursive_value_has_a_representation() -> None:
    made = shape(dataclass, {"slots": True})(name="a")
    made.notes.append(made)
    assert "..." in repr(made)


@dataclass(frozen=True, slots=True)
class Pickled:
    name: str
    sizes: tuple[int, ...] = ()


def test_frozen_value_with_slots_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled("a", (1, 2)))) == Pickled("a", (1, 2))


def test_mutable_default_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(slots=True)
        class Shared:
            names: list[str] = []  # noqa: RUF012


def test_ordinary_subclass_of_frozen_class_keeps_fields_frozen() -> None:
    class Heir(Pickled):
        pass

    made = Heir("a")
    made.other = 1  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]


def modules() -> list[str]:
    found = pkgutil.walk_packages(taskgate.__path__, "taskgate.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_every_dataclass_of_the_gateway_compiles() -> None:
    """A field without default after one with default, for example, is an error of the first use only."""
    count = 0
    for name in modules():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:  # an extra that is not installed
            continue
        for made in vars(module).values():
            if inspect.isclass(made) and "__dataclass_fields__" in vars(made):
                assert inspect.signature(made)
                assert callable(made.__eq__)
                assert made.__hash__ is None or callable(made.__hash__)
                count += 1
    assert count > 300


def test_every_dataclass_of_the_gateway_is_lazy() -> None:
    for file in Path(taskgate.__file__).parent.rglob("*.py"):
        if file.name == "lazy_dataclass.py":
            continue
        imports = [line for line in file.read_text().splitlines() if line.startswith("from dataclasses import")]
        names = {name.strip() for line in imports for name in line.split("import")[1].split(",")}
        assert "dataclass" not in names, f"{file}: import dataclass from taskgate.lazy_dataclass"
