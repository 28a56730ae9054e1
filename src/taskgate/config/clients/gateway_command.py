"""The command by which a client starts this installation of the gateway."""

from __future__ import annotations

import sys
from pathlib import Path

from taskgate.own_programs import own_program


def shared_gateway_command(config: Path) -> tuple[str, ...]:
    """Return the command for a file that is shared with other developers: no absolute paths of this machine."""
    return ("taskgate", "stdio", "-c", config.name)


def gateway_command(config: Path | None, scope: str | None = None) -> tuple[str, ...]:
    """Return `taskgate stdio -c FILE` with absolute paths, because clients start programs in other folders."""
    script = Path(sys.executable).with_name("taskgate")
    program = (str(script),) if script.exists() else tuple(own_program())
    file = ("-c", str(config.absolute())) if config else ()
    return (*program, "stdio", *file, *(("--scope", scope) if scope else ()))
