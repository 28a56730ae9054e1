"""Every field of the configuration file, and of the plan made from it, is read: a setting must have an effect."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.structure.source import nodes_of

import taskgate
import taskgate.core.settings
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.section import Section
from taskgate.gateway import plan

ROOT = Path(taskgate.__file__).parent
READ_WHILE_LOADING = {
    "schema_version": "which form the file has",
    "environment": "which overlay is laid over it",
    "registry_dir": "where records of more servers are",
    "allow_command": "whether references may run commands",
    "secrets": "the section of that switch",
}
COPIED_WITHIN_ASSEMBLY = {
    "json_depth": "the reader shared by doors and servers is made there",
    "json_nodes": "the same",
    "instances_per_server": "each server is created with it",
    "models_origin": "tells the next reload whether the models can be kept",
}


NamesRead = dict[Path, frozenset[str]]


@pytest.fixture(scope="module")
def names_read() -> NamesRead:
    """By file: every attribute that is looked up in it; a name in a comment, a string or an assignment is not."""
    return {file: _names_in(file) for file in ROOT.rglob("*.py")}


def _names_in(file: Path) -> frozenset[str]:
    nodes = nodes_of(file.read_text())
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))


def _read_outside(names_read: NamesRead, *packages: str) -> set[str]:
    closed = [ROOT / room for room in packages]
    return set().union(
        *(names for file, names in names_read.items() if not any(room in file.parents for room in closed))
    )


def _sections(kind: type[Section] = Section) -> Iterator[type[Section]]:
    for found in kind.__subclasses__():
        if found.__module__.startswith("taskgate."):
            yield found
        yield from _sections(found)


def test_every_field_of_the_file_is_read_outside_the_config_package(names_read: NamesRead) -> None:
    for module in pkgutil.walk_packages(taskgate.core.settings.__path__, "taskgate.core.settings."):
        importlib.import_module(module.name)
    fields = {(section.__name__, name) for section in _sections() for name in section.__struct_fields__}
    assert len(fields) > 150
    used = _read_outside(names_read, "config", "core/settings") | READ_WHILE_LOADING.keys()
    assert sorted(field for field in fields if field[1] not in used) == []


def test_every_field_of_the_plan_is_read_outside_the_module_that_builds_it(names_read: NamesRead) -> None:
    values = [value for value in vars(plan).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)]
    assert Limits in values
    fields = {(str(value), name) for value in values for name in inspect.get_annotations(value)}
    assert len(fields) > 50
    used = _read_outside(names_read, "config", "assembly") | COPIED_WITHIN_ASSEMBLY.keys()
    assert sorted(field for field in fields if field[1] not in used) == []


def test_the_exceptions_are_still_needed(names_read: NamesRead) -> None:
    assert READ_WHILE_LOADING.keys().isdisjoint(_read_outside(names_read, "config"))
    in_assembly = set().union(*(names for file, names in names_read.items() if ROOT / "assembly" in file.parents))
    assert in_assembly >= COPIED_WITHIN_ASSEMBLY.keys()
