"""`taskgate stdio`, as far as it needs no gateway in this process: its few options, the streams, and its exit codes."""

from __future__ import annotations

import os
import select
import stat
import sys

from taskgate.bridge.meeting import Meeting
from taskgate.bridge.pending import unreached, unsent
from taskgate.bridge.relay import HungUp, Relay
from taskgate.bridge.starter import NoGateway, reach
from taskgate.folders import find_config, state_folder

STDIN, STDOUT = 0, 1
FIRST_LINE_S = 1.0
_OPTIONS = {"-c": "config", "--config": "config", "--scope": "scope"}


def options(words: list[str]) -> dict[str, str] | None:
    """The options of a plain `taskgate stdio`; None if there is anything that the whole command line must look at."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        key = _OPTIONS.get(name)
        if key is None:
            return None
        given = value if equals else next(rest, None)
        if given is None:
            return None
        found[key] = given
    return found


def bridge(config: str | None, scope: str | None) -> int:
    """Join the client's streams to the local gateway until the client hangs up; the exit code."""
    try:
        meeting = Meeting(state_folder(os.environ), find_config(config, os.environ))
        line = reach(meeting, scope)
    except NoGateway as problem:
        return _refuse(str(problem), problem.code)
    except OSError as problem:
        return _refuse(f"The state folder cannot be used: {problem.strerror or problem}. Set TASKGATE_STATE_DIR.", 3)
    blocking = _without_blocking()
    try:
        Relay(line, lambda wait: reach(meeting, scope, wait), meeting.log_path, STDIN, STDOUT).run()
    except (HungUp, KeyboardInterrupt):
        return 0
    finally:
        if blocking:
            os.set_blocking(STDOUT, True)
    return 0


def _without_blocking() -> bool:
    """A pipe or socket may be full; a file or terminal is left as it is for the processes that share it."""
    kind = os.fstat(STDOUT).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) or not os.get_blocking(STDOUT):
        return False
    os.set_blocking(STDOUT, False)
    return True


def _refuse(why: str, code: int) -> int:
    """Nothing can be served: print why, and answer the client if it sends a request within a moment."""
    sys.stderr.write(f"taskgate: {why}\n")
    sys.stderr.flush()
    if not os.isatty(STDIN) and select.select([STDIN], [], [], FIRST_LINE_S)[0]:
        first = os.read(STDIN, 65536).partition(b"\n")[0]
        asked = unsent(first)
        if asked is not None:
            os.write(STDOUT, unreached(asked, why, was_sent=False))
    return code
