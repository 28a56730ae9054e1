"""The interpreter of scripts. Creating it starts and imports nothing; it may not be installed (`availability`)."""

from __future__ import annotations

from taskgate.ports.script_interpreter import ScriptInterpreter
from taskgate.scripts.monty_interpreter import MontyInterpreter


def interpreter() -> ScriptInterpreter:
    """Return the interpreter with a pool of its own."""
    return MontyInterpreter()
