"""Run by the template of the gateway's environment after its imports: what a gateway builds at its first use, built once.

Parts of the configuration's sections are not built by imports but when they are first used, so every forked gateway would build
them again. Only what depends on nothing but the source is built here.
"""

from __future__ import annotations

import os

from taskgate.config.load import load_text
from taskgate.core.settings.section import as_written


def load_configuration() -> None:
    """What the sections of a configuration need to be read and written."""
    loaded = load_text("{}", environment={"HOME": os.sep})
    as_written(loaded.root)


if __name__ == "__template__":
    load_configuration()
