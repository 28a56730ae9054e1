"""Finds the user's local gateway, or starts it: one, however many bridges want it at the same moment.

The gateway becomes a process of its own, in a session of its own: a client that ends, or that kills the group of its servers, must
not take the gateway of the other clients with it. It says over a pipe when it can be reached, or why it cannot start.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable

from taskgate import __version__
from taskgate.bridge.meeting import HELLO_BYTES, HELLO_S, SPOKEN, Meeting, hello, make_room, monotonic, read

START_S = 30.0
"""For a cold start on a busy machine, or for another bridge's start."""
LOOK_EVERY_S = 0.02
READY_VARIABLE = "TASKGATE_READY_FD"
CANNOT_START = 3
LOG_BYTES = 4 << 20
_LAST_WORDS = 4096


Wait = Callable[[int | None, float], bool]
"""Waits until a descriptor can be read or the seconds are over; whether it can be read."""


def plain_wait(descriptor: int | None, seconds: float) -> bool:
    return bool(select.select([] if descriptor is None else [descriptor], [], [], max(0.0, seconds))[0])


class NoGateway(Exception):
    """There is no gateway and none could be started; `code` is the exit code that this deserves."""

    def __init__(self, message: str, code: int = CANNOT_START) -> None:
        super().__init__(message)
        self.code = code


class Line:
    """A connection to a gateway that serves us, and what it sent after its first line."""

    def __init__(self, made: socket.socket, rest: bytes) -> None:
        self.socket, self.rest = made, rest


def reach(meeting: Meeting, scope: str | None, wait: Wait = plain_wait) -> Line:
    """A line to the gateway, which is started if there is none. Raises NoGateway."""
    deadline = monotonic() + START_S
    while monotonic() < deadline:
        line = _greet(meeting, scope, wait)
        if line is not None:
            return line
        starting = meeting.try_lock("start")
        if starting is None:
            wait(None, LOOK_EVERY_S)
            continue
        try:
            # The bridge that held the lock until now may have started it.
            line = _greet(meeting, scope, wait)
            if line is not None:
                return line
            _start(meeting, deadline, wait)
        finally:
            os.close(starting)
    raise NoGateway(f"The local gateway could not be reached within {START_S:g} s. Its log: {meeting.log_path}")


def _greet(meeting: Meeting, scope: str | None, wait: Wait) -> Line | None:
    """Begin with the gateway that is there. None if there is none, or if it makes room for another."""
    found = meeting.connect()
    if found is None:
        return None
    made, key = found
    try:
        made.settimeout(HELLO_S)
        made.sendall(hello(__version__, scope, os.getcwd(), os.environ, key))
        said, rest = _first_line(made, wait)
    except (OSError, ValueError):
        made.close()
        return None
    if said.get("serves") and said["protocol"] in SPOKEN:
        made.setblocking(False)
        return Line(made, rest)
    made.close()
    if said.get("serves"):
        _ask_to_make_room(meeting)
    elif not said.get("replaced"):
        raise NoGateway(str(said.get("why") or "The local gateway refused."), 2)
    return None


def _first_line(made: socket.socket, wait: Wait) -> tuple[dict[str, object], bytes]:
    said = b""
    while b"\n" not in said:
        if not wait(made.fileno(), HELLO_S):
            raise ValueError("no first line came in time")
        chunk = made.recv(65536)
        if not chunk or len(said) > HELLO_BYTES:
            raise ValueError("no first line came")
        said += chunk
    first, _, rest = said.partition(b"\n")
    return read(first, "gateway"), rest


def _ask_to_make_room(meeting: Meeting) -> None:
    """A gateway whose protocol we do not speak: it drains and ends, and we start our own."""
    found = meeting.connect()
    if found is None:
        return
    made, key = found
    try:
        made.sendall(make_room(__version__, key))
        made.settimeout(START_S)
        while made.recv(65536):
            pass
    except OSError:
        return
    finally:
        made.close()


def _start(meeting: Meeting, deadline: float, wait: Wait) -> None:
    """Start a gateway and wait until it reports that it can be reached."""
    hears, tells = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _become_gateway(meeting, hears, tells)
        os.close(tells)
        os.waitpid(child, 0)
        said = _heard(hears, deadline, wait)
    finally:
        os.close(hears)
    if said.startswith(b"ready"):
        return
    if said.startswith(b"failed "):
        code, _, why = said[len(b"failed ") :].decode("utf-8", "replace").partition(" ")
        raise NoGateway(why.strip() or "The local gateway could not start.", int(code) if code.isdigit() else 1)
    raise NoGateway(f"The local gateway ended while it started. {_last_words(meeting)}")


def _heard(hears: int, deadline: float, wait: Wait) -> bytes:
    """The gateway's report of its start: everything up to the end of the pipe, or a whole line."""
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - monotonic()
        if left <= 0 or not wait(hears, left):
            return said
        chunk = os.read(hears, 4096)
        if not chunk:
            return said
        said += chunk
    return said


def _become_gateway(meeting: Meeting, hears: int, tells: int) -> None:
    """In the child: a grandchild becomes the gateway, the child ends at once."""
    try:
        os.close(hears)
        os.setsid()
        if os.fork():
            os._exit(0)
        _rotate(meeting.log_path)
        log = os.open(meeting.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.set_inheritable(tells, True)
        words = [sys.executable, "-m", "taskgate", "serve", "--on-demand"]
        words += ["-c", os.path.abspath(meeting.config)] if meeting.config is not None else []
        environment = {**os.environ, "TASKGATE_STATE_DIR": meeting.state, READY_VARIABLE: str(tells)}
        os.execve(sys.executable, words, environment)
    except BaseException:  # a forked process may never return into its parent's code
        os._exit(1)


def _rotate(path: str) -> None:
    """One old log is kept beside the current one."""
    try:
        if os.stat(path).st_size > LOG_BYTES:
            os.replace(path, path + ".1")
    except FileNotFoundError:
        return


def _last_words(meeting: Meeting) -> str:
    try:
        with open(meeting.log_path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_WORDS))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return f"Its last words: {lines[-1]}" if lines else f"Its log: {meeting.log_path}"
