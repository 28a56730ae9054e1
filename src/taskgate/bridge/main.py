"""The command `taskgate stdio` without a gateway in this process: options, streams and exit codes."""

from __future__ import annotations

import os
import select
import stat
import sys

from taskgate.bridge.errors import gateway_unreachable
from taskgate.bridge.gateway_files import GatewayFiles
from taskgate.bridge.pending import unsent
from taskgate.bridge.relay import ClientGone, Relay
from taskgate.bridge.starter import NoGateway, reach
from taskgate.consent import NotAllowedHere, file_for_client
from taskgate.folders import state_folder

STDIN, STDOUT = 0, 1
FIRST_LINE_S = 1.0
USAGE = 2
_OPTIONS = {"-c": "config", "--config": "config", "--scope": "scope"}


def options(arguments: list[str]) -> dict[str, str] | None:
    """Parse the options of `taskgate stdio`. Return None if the full command line parser is needed."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        key = _OPTIONS.get(name)
        if key is None:
            return None
        given = value if equals else next(rest, None)
        if given is None:
            return None
        found[key] = given
    return found


def bridge(config: str | None, scope: str | None) -> int:
    """Connect the client's streams to the local gateway until the client disconnects. Return the exit code."""
    try:
        chosen = file_for_client(config, os.environ)
        if chosen.note:
            _say(chosen.note)
        files = GatewayFiles(state_folder(os.environ), chosen.path, is_found=chosen.is_found)
        line = reach(files, scope)
    except NotAllowedHere as problem:
        return _refuse(str(problem), USAGE)
    except NoGateway as problem:
        return _refuse(str(problem), problem.code)
    except OSError as problem:
        why = f"{problem.strerror or problem} ({state_folder(os.environ)})"
        return _refuse(f"The state folder cannot be used: {why}. Set TASKGATE_STATE_DIR.", 3)
    blocking = _without_blocking()
    try:
        Relay(line, lambda wait: reach(files, scope, wait), files.log_path, STDIN, STDOUT).run()
    except (ClientGone, KeyboardInterrupt):
        return 0
    finally:
        if blocking:
            os.set_blocking(STDOUT, True)
    return 0


def _without_blocking() -> bool:
    """Make stdout non-blocking if it is a pipe or socket. Files and terminals are shared with other processes."""
    kind = os.fstat(STDOUT).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) or not os.get_blocking(STDOUT):
        return False
    os.set_blocking(STDOUT, False)
    return True


def _refuse(why: str, code: int) -> int:
    """Print the error, and answer the client's first request with it if it arrives within a second."""
    _say(why)
    if not os.isatty(STDIN) and select.select([STDIN], [], [], FIRST_LINE_S)[0]:
        first = os.read(STDIN, 65536).partition(b"\n")[0]
        request = unsent(first)
        if request is not None:
            os.write(STDOUT, gateway_unreachable(request, why, was_sent=False))
    return code


def _say(text: str) -> None:
    sys.stderr.write(f"taskgate: {text}\n")
    sys.stderr.flush()
