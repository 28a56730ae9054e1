"""A record is a `msgspec.Struct`, or a `NamedTuple` where a tuple is meant. A call that creates one with many values names them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.structure.source import nodes_of_kind

import taskgate

SOURCE = Path(taskgate.__file__).parent
RECORDS = {"Struct", "NamedTuple"}
MAX_POSITIONAL = 4

Fields = Mapping[tuple[str, str], int]
"""How many fields a record has, by module and name."""


def module_of(path: Path) -> str:
    return ".".join(("taskgate", *path.relative_to(SOURCE).with_suffix("").parts))


def names_in(module: str, source: str) -> dict[str, tuple[str, str]]:
    """The classes that a module can name: its own, and those that it imports from others."""
    own = {node.name: (module, node.name) for node in nodes_of_kind(source, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes_of_kind(source, ast.ImportFrom)
        for alias in node.names
    }
    return imported | own


def records_in(sources: Mapping[str, str]) -> Fields:
    """All records, also those that inherit from others."""
    declared = dict[tuple[str, str], tuple[list[tuple[str, str]], int]]()
    for module, source in sources.items():
        names = names_in(module, source)
        for node in nodes_of_kind(source, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
            fields = sum(
                isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation) for line in node.body
            )
            declared[module, node.name] = [names.get(base, ("", base)) for base in bases], fields

    def size(key: tuple[str, str], below: tuple[tuple[str, str], ...] = ()) -> int | None:
        if key[1] in RECORDS:
            return 0
        bases, fields = declared.get(key, ([], 0))
        above = [base for base in bases if base not in (key, *below)]
        sizes = [found for base in above if (found := size(base, (key, *below))) is not None]
        return sum(sizes) + fields if sizes else None

    return {key: found for key in declared if (found := size(key)) is not None}


def many_positional_in(module: str, source: str, records: Fields) -> Iterator[tuple[int, str]]:
    """Line and name of each record that is created with more values by position than a reader can check, or from a list whose order
    must be that of the fields."""
    names = names_in(module, source)
    classes = {id(inner): node.name for node in nodes_of_kind(source, ast.ClassDef) for inner in ast.walk(node)}
    for call in nodes_of_kind(source, ast.Call):
        name = ast.unparse(call.func)
        key = (module, classes.get(id(call), "")) if name == "cls" else names.get(name, ("", ""))
        if key not in records:
            continue
        unpacked = any(isinstance(value, ast.Starred) for value in call.args)
        if len(call.args) > MAX_POSITIONAL or (unpacked and records[key] > MAX_POSITIONAL):
            yield call.lineno, name


def source_files() -> dict[str, str]:
    return {module_of(path): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def test_no_record_is_created_from_many_values_by_position() -> None:
    sources = source_files()
    records = records_in(sources)
    assert len(records) > 400
    found = [
        f"{module}:{line} {name}"
        for module, source in sources.items()
        for line, name in many_positional_in(module, source, records)
    ]
    assert found == []


BASE = "import msgspec\nclass Base(msgspec.Struct):\n    a: int\n    b: int\n    KIND: ClassVar[int] = 1\n"
CREATED = {
    "class A(Base):\n    c: int\n    d: int\n    e: int\nA(1, 2, 3, 4, 5)": [(10, "A")],
    "class A(Base):\n    c: int\n    d: int\n    e: int\nA(*values)": [(10, "A")],
    "class A(Base):\n    c: int\n    d: int\nA(1, 2, 3, 4)\nA(*values)": [],
    "class A(Base):\n    c: int\n    d: int\n    e: int\n    @classmethod\n    def of(cls):\n        return cls(1, 2, 3, 4, 5)": [
        (12, "cls")
    ],
    "class A(Base):\n    c: int\n    d: int\n    e: int\nA(1, 2, 3, 4, e=5)": [],
    "class Row(NamedTuple):\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int\nRow(1, 2, 3, 4, 5)": [
        (12, "Row")
    ],
    "class Plain:\n    a: int\nPlain(1, 2, 3, 4, 5)": [],
}


@pytest.mark.parametrize("source", CREATED)
def test_the_check_counts_values_by_position(source: str) -> None:
    source_with_base = BASE + source
    records = records_in({"taskgate.x": source_with_base})
    assert list(many_positional_in("taskgate.x", source_with_base, records)) == CREATED[source]


def test_the_check_knows_imported_records() -> None:
    base = BASE + "    c: int\n    d: int\n    e: int"
    sources = {"taskgate.x": base, "taskgate.y": "from taskgate.x import Base\nBase(1, 2, 3, 4, 5)"}
    assert list(many_positional_in("taskgate.y", sources["taskgate.y"], records_in(sources))) == [(2, "Base")]


STANDARD = dict[str, str]()
"""Modules that need the dataclass of the standard library, each with the reason."""


def test_records_are_structs() -> None:
    found = {
        module
        for module, source in source_files().items()
        for node in nodes_of_kind(source, ast.ImportFrom)
        if any(alias.name == "dataclass" for alias in node.names)
    }
    assert found == set(STANDARD), "use msgspec.Struct; docs/decisions/records.md explains when to use what"
