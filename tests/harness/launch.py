"""Starts a program that a template can run, for programs that start others: gateways and clients of other SDKs.

    python -I -S launch.py SOCKET INTERPRETER FILE ARGUMENTS...

It hands its standard streams, environment and folder to the template (`tests/harness/template.py`), passes signals on, and ends as
the program ends; when it is killed, so is the program. Where no template listens it becomes the real interpreter.
"""

import json
import os
import select
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def asked(place: str, command: list[str]) -> "socket.socket | None":
    """The connection to the process that supervises the program; None if there is no template for it."""
    template = socket.socket(socket.AF_UNIX)
    body = json.dumps({"command": command, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    try:
        template.connect(place)
        socket.send_fds(template, [len(body).to_bytes(8, "big")], [0, 1, 2])
        template.sendall(body)
        return template if template.recv(1) == b"+" else None
    except OSError:
        return None


def end_like(status: int) -> None:
    """End like the program: with its exit code, or by its signal."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    place, *command = sys.argv[1:]
    # The program may run, and its parent may send a signal, before the handlers below are installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    watched = asked(place, command)
    if watched is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(command[0], command)
    # Processes at the other ends must notice when the program ends, and not when this does.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    # The C handler of the interpreter sends the number of the signal. A Python handler would run only after the next read, if the
    # signal arrives between two instructions.
    watched.setblocking(False)
    signal.set_wakeup_fd(watched.fileno())
    for each in PASSED_ON:
        signal.signal(each, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    said = b""
    while not said.endswith(b"\n"):
        select.select([watched], [], [])
        part = watched.recv(64)
        if not part:
            break
        said += part
    signal.set_wakeup_fd(-1)
    end_like(int(said) if said else -signal.SIGKILL)
