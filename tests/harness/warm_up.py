"""Run by the template of the gateway's environment after its imports: what a gateway builds at its first use, built once.

The schema of the configuration and the methods of dataclasses are not built by imports but when they are first used, so every
forked gateway would build them again: half of the CPU time of its start. Only what depends on nothing but the source is built here.
"""

from __future__ import annotations

import gc
import os

from taskgate.config.load import load_text

DATACLASS = "__dataclass_fields__"


def build_configuration_schema() -> None:
    """The validators and serializers of every section."""
    loaded = load_text("{}", environment={"HOME": os.sep})
    loaded.root.model_dump(mode="json")
    loaded.root.governance.model_dump(mode="json")


def compile_constructors() -> None:
    """Reading a method of a lazy dataclass compiles it."""
    for found in gc.get_objects():
        if isinstance(found, type) and DATACLASS in found.__dict__:
            found.__init__  # type: ignore[misc]


if __name__ == "__template__":
    build_configuration_schema()
    compile_constructors()
