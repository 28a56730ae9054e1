"""Import a module of a library without running the `__init__` module of its package, which often imports what a gateway never uses.

uvicorn's imports its command line, that of watchfiles an asynchronous framework: together 4 MB of every gateway and a
twentieth of its start.
"""

from __future__ import annotations

import importlib.util
import sys
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
