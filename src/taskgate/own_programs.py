"""The command line by which one of Taskgate's modules runs in a process of its own.

Standard library only and cheap to import, because the bridge of every client on stdio uses it.
"""

from __future__ import annotations

import sys


def own_program(module: str = "taskgate") -> list[str]:
    """Return the command for a module of this installation.

    Python's `-m` looks for modules in the working folder first, and a client starts the gateway in the folder that is open in it.
    With `-P` it does not.
    """
    return [sys.executable, "-P", "-m", module]
