"""Import a module of a library without what it imports and a gateway never uses.

The `__init__` module of uvicorn imports its command line, that of watchfiles an asynchronous framework: together 4 MB of every
gateway and a twentieth of its start. Modules of the standard library for logging to files and for mail, which uvicorn imports, and
backports for older Pythons, which msgspec imports, take another 1.2 MB.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def bare_package(name: str, **names: str) -> None:
    """Let modules of a package be imported without running its `__init__` module. That module runs when an attribute of the
    package itself is read, except for the given names, which are read from the given modules.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    package = importlib.util.module_from_spec(spec)
    content = vars(package)

    def attribute(missing: str) -> Any:
        if missing in names:
            return getattr(importlib.import_module(names[missing]), missing)
        content.pop("__getattr__", None)
        if spec.loader is not None:
            spec.loader.exec_module(package)
        return getattr(package, missing)

    content["__getattr__"] = attribute
    sys.modules[name] = package


@contextmanager
def imported_when_called(*modules: str) -> Iterator[None]:
    """Import libraries in this context without these modules. What the libraries take from one of them is a function, which
    imports the module when it is called.
    """
    added = {name: _StandIn(name) for name in modules if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        _remove(added)
        for name, module in added.items():
            # `import package.module` binds the package, and the library reads the module as its attribute. A later import of the
            # module replaces it.
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                sys.modules[package].__dict__.setdefault(last, module)


class _StandIn(ModuleType):
    """A module whose names are functions that import the module."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


@contextmanager
def as_if_absent(module: str) -> Iterator[None]:
    """Import libraries in this context that use an optional module as if it were not installed."""
    added = {module: None} if module not in sys.modules else {}
    sys.modules.update(added)  # type: ignore[arg-type]  # None is how Python marks a module that must not be imported
    try:
        yield
    finally:
        _remove(added)


def _remove(added: Mapping[str, ModuleType | None]) -> None:
    for name, module in added.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
