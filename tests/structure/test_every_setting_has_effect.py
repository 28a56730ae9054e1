"""Every field of the configuration file, and of the plan made from it, is read: a setting must have an effect."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.structure.source import nodes_of

import taskgate
import taskgate.config
from taskgate.assembly.limits import limit_of
from taskgate.config.model.limits import Limits as LimitKeys
from taskgate.config.sections import Section
from taskgate.core.limits import DEFAULTS, Limits
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
    for module in pkgutil.walk_packages(taskgate.config.__path__, "taskgate.config."):
        importlib.import_module(module.name)
    fields = {(section.__name__, name) for section in _sections() for name in section.model_fields}
    assert len(fields) > 150
    used = _read_outside(names_read, "config") | READ_WHILE_LOADING.keys() | set(_limits_copied_by_name())
    assert sorted(field for field in fields if field[1] not in used) == []


def _limits_copied_by_name() -> dict[str, str]:
    """The keys of `limits` that `assembly.limits` copies to a field, each with that field."""
    known = {field.name for field in dataclasses.fields(Limits)}
    given = {key: limit_of(key, value)[0] for key, value in LimitKeys()}
    return {key: field for key, field in given.items() if field in known}


def test_every_limit_has_a_key_with_the_same_default() -> None:
    keys = {field: limit_of(key, value)[1] for key, value in LimitKeys() for field in [limit_of(key, value)[0]]}
    fields = {field.name: getattr(DEFAULTS, field.name) for field in dataclasses.fields(Limits)}
    del fields["sampling_of_tenant"]
    assert {name: keys.get(name, "missing") for name in fields} == fields


def test_every_field_of_the_plan_is_read_outside_the_module_that_builds_it(names_read: NamesRead) -> None:
    values = [value for value in vars(plan).values() if dataclasses.is_dataclass(value)]
    assert Limits in values
    fields = {(str(value), field.name) for value in values for field in dataclasses.fields(value)}
    assert len(fields) > 50
    used = _read_outside(names_read, "config", "assembly") | COPIED_WITHIN_ASSEMBLY.keys()
    assert sorted(field for field in fields if field[1] not in used) == []


def test_the_exceptions_are_still_needed(names_read: NamesRead) -> None:
    assert READ_WHILE_LOADING.keys().isdisjoint(_read_outside(names_read, "config"))
    in_assembly = set().union(*(names for file, names in names_read.items() if ROOT / "assembly" in file.parents))
    assert in_assembly >= COPIED_WITHIN_ASSEMBLY.keys()
