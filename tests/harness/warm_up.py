"""Run by the template of the gateway's environment after its imports: what a gateway builds at its first use, built once.

The methods of dataclasses and parts of the configuration's sections are not built by imports but when they are first used, so every
forked gateway would build them again. Only what depends on nothing but the source is built here.
"""

from __future__ import annotations

import gc
import os

from taskgate.config.load import load_text
from taskgate.core.settings.section import as_written

DATACLASS = "__dataclass_fields__"


def load_configuration() -> None:
    """What the sections of a configuration need to be read and written."""
    loaded = load_text("{}", environment={"HOME": os.sep})
    as_written(loaded.root)


def compile_constructors() -> None:
    """Reading a method of a lazy dataclass compiles it."""
    for found in gc.get_objects():
        if isinstance(found, type) and DATACLASS in found.__dict__:
            found.__init__  # type: ignore[misc]


if __name__ == "__template__":
    load_configuration()
    compile_constructors()
