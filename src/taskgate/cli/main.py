"""The `taskgate` command. The command table lists the commands; each is a module that is imported when it is selected.

`taskgate stdio` is handled first, without the command line library, because every client starts one; so are `serve` and
`--version`.
"""

from __future__ import annotations

import gc
import os
import sys

from taskgate import __version__

OLDEST_PYTHON = (3, 11)
DEBUG_VARIABLE = "TASKGATE_DEBUG"
COMPLETE_VARIABLE = "_TASKGATE_COMPLETE"
USAGE, INTERNAL = 2, 70


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        found, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        sys.exit(_failed(f"Taskgate needs Python {needed} or newer; {sys.executable} is {found}.", USAGE))
    arguments = sys.argv[1:]
    # Imports create almost no garbage, and collecting it takes a tenth of the start time.
    gc.set_threshold(100_000, 20, 20)
    try:
        if arguments[:1] == ["stdio"]:
            from taskgate.bridge.main import bridge, options

            given = options(arguments[1:])
            if given is not None:
                sys.exit(bridge(given.get("config"), given.get("scope")))
        if arguments[:1] == ["serve"]:
            from taskgate.cli.announcement import options as serve_options
            from taskgate.cli.announcement import serve_with

            usual = serve_options(arguments[1:])
            if usual is not None:
                return serve_with(usual)
        if arguments == ["--version"]:
            print(__version__)
            return None
        from taskgate.cli.root import build_app

        build_app()(arguments, prog_name="taskgate", complete_var=COMPLETE_VARIABLE)
    except Exception as fault:  # around a whole command: print one sentence, and the traceback on request
        import traceback

        from taskgate.telemetry.logs import log

        if os.environ.get(DEBUG_VARIABLE):
            sys.exit(_failed(log.without_secrets("".join(traceback.format_exception(fault))), INTERNAL))
        why = log.without_secrets(f"{type(fault).__name__}: {fault}".rstrip(": "))
        sys.exit(_failed(f"Internal error: {why}. Set {DEBUG_VARIABLE}=1 for the traceback, and report it.", INTERNAL))


def _failed(why: str, code: int) -> int:
    sys.stderr.write(f"taskgate: {why}\n")
    return code
