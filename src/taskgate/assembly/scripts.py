"""The interpreter of scripts. Creating it starts and imports nothing; it may not be installed (`availability`)."""

from __future__ import annotations

from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.ports.script_interpreter import ScriptInterpreter
from taskgate.scripts.monty_interpreter import MontyInterpreter


def interpreter() -> ScriptInterpreter:
    """Return the interpreter with a pool of its own."""
    return MontyInterpreter()


def version_for(settings: GatewayFile) -> str:
    """The version of the interpreter, for other gateways; empty if no scope has scripts or it is not installed."""
    return interpreter().version if any(scope.scripts == "on" for scope in settings.scopes.values()) else ""
