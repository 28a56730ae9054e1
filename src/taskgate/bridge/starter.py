"""Find the user's local gateway, or start it: only one, even if several bridges need it at the same time.

The gateway is a process in its own session, so that a client that ends, or that kills the process group of its servers,
does not end the gateway of the other clients. It reports over a pipe when it is ready, or why it cannot start.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

from taskgate import __version__
from taskgate.bridge.gateway_files import GatewayFiles, monotonic
from taskgate.bridge.handshake import HELLO_BYTES, HELLO_S, SUPPORTED_PROTOCOLS, hello, read, replace_request
from taskgate.own_programs import own_program

START_S = 30.0
"""Timeout of a cold start on a busy machine, also if another bridge starts it."""
POLL_S = 0.02
READY_VARIABLE = "TASKGATE_READY_FD"
CANNOT_START = 3
LOG_BYTES = 4 << 20
_LOG_TAIL_BYTES = 4096


Wait = Callable[[int | None, float], bool]
"""Waits until a descriptor is readable or the time is over, and returns whether it is readable."""


def wait_readable(descriptor: int | None, seconds: float) -> bool:
    return bool(select.select([] if descriptor is None else [descriptor], [], [], max(0.0, seconds))[0])


class NoGateway(Exception):
    """There is no gateway and none could be started. `code` is the exit code."""

    def __init__(self, message: str, code: int = CANNOT_START) -> None:
        super().__init__(message)
        self.code = code


class GatewayConnection:
    """A connection to a gateway that serves this client, and the data after its first line."""

    def __init__(self, made: socket.socket, rest: bytes) -> None:
        self.socket, self.rest = made, rest


def reach(files: GatewayFiles, scope: str | None, wait: Wait = wait_readable) -> GatewayConnection:
    """Connect to the gateway, and start it if there is none. Raises NoGateway."""
    deadline = monotonic() + START_S
    while monotonic() < deadline:
        line = _connect(files, scope, wait)
        if line is not None:
            return line
        starting = files.try_lock("start")
        if starting is None:
            wait(None, POLL_S)
            continue
        try:
            # The previous holder of the lock may have started it.
            line = _connect(files, scope, wait)
            if line is not None:
                return line
            _start(files, deadline, wait)
        finally:
            os.close(starting)
    raise NoGateway(f"The local gateway did not respond within {START_S:g} s. Log: {files.log_path}")


def _connect(files: GatewayFiles, scope: str | None, wait: Wait) -> GatewayConnection | None:
    """Connect to the running gateway. Return None if there is none or it is stopping."""
    found = files.connect()
    if found is None:
        return None
    made, key = found
    try:
        made.settimeout(HELLO_S)
        made.sendall(hello(__version__, scope, os.getcwd(), os.environ, key))
        received, rest = _first_line(made, wait)
    except (OSError, ValueError):
        made.close()
        return None
    if received.get("serves") and received["protocol"] in SUPPORTED_PROTOCOLS:
        made.setblocking(False)
        return GatewayConnection(made, rest)
    made.close()
    if received.get("serves"):
        _request_replacement(files)
    elif not received.get("replaced"):
        raise NoGateway(str(received.get("why") or "The local gateway rejected the connection."), 2)
    return None


def _first_line(made: socket.socket, wait: Wait) -> tuple[dict[str, object], bytes]:
    received = b""
    while b"\n" not in received:
        if not wait(made.fileno(), HELLO_S):
            raise ValueError("timeout waiting for the first line")
        chunk = made.recv(65536)
        if not chunk or len(received) > HELLO_BYTES:
            raise ValueError("no first line received")
        received += chunk
    first, _, rest = received.partition(b"\n")
    return read(first, "gateway"), rest


def _request_replacement(files: GatewayFiles) -> None:
    """Ask a gateway with an unsupported protocol version to drain and end, and wait for that."""
    found = files.connect()
    if found is None:
        return
    made, key = found
    try:
        made.sendall(replace_request(__version__, key))
        made.settimeout(START_S)
        while made.recv(65536):
            pass
    except OSError:
        return
    finally:
        made.close()


def _start(files: GatewayFiles, deadline: float, wait: Wait) -> None:
    """Start a gateway and wait until it reports that it is ready. Raises NoGateway."""
    read_end, write_end = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _become_gateway(files, read_end, write_end)
        os.close(write_end)
        os.waitpid(child, 0)
        received = _read_report(read_end, deadline, wait)
    finally:
        os.close(read_end)
    if received.startswith(b"ready"):
        return
    if received.startswith(b"failed "):
        code, _, why = received[len(b"failed ") :].decode("utf-8", "replace").partition(" ")
        raise NoGateway(why.strip() or "The local gateway could not start.", int(code) if code.isdigit() else 1)
    raise NoGateway(f"The local gateway ended during startup. {_log_tail(files)}")


def _read_report(read_end: int, deadline: float, wait: Wait) -> bytes:
    """Read the gateway's report: a line, or everything until the pipe is closed."""
    received = b""
    while not received.endswith(b"\n"):
        left = deadline - monotonic()
        if left <= 0 or not wait(read_end, left):
            return received
        chunk = os.read(read_end, 4096)
        if not chunk:
            return received
        received += chunk
    return received


def _become_gateway(files: GatewayFiles, read_end: int, write_end: int) -> None:
    """Run in the child: fork a grandchild that becomes the gateway, and exit."""
    try:
        os.close(read_end)
        os.setsid()
        if os.fork():
            os._exit(0)
        _rotate(files.log_path)
        log = os.open(files.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.set_inheritable(write_end, True)
        arguments = [*own_program(), "serve", "--on-demand"]
        arguments += ["--found"] if files.is_found else []
        arguments += ["-c", os.path.abspath(files.config)] if files.config is not None else []
        environment = {**os.environ, "TASKGATE_STATE_DIR": files.state, READY_VARIABLE: str(write_end)}
        os.execve(arguments[0], arguments, environment)
    except BaseException:  # a forked process must not return into its parent's code
        os._exit(1)


def _rotate(path: str) -> None:
    """Keep one old log besides the current one."""
    try:
        if os.stat(path).st_size > LOG_BYTES:
            os.replace(path, path + ".1")
    except FileNotFoundError:
        return


def _log_tail(files: GatewayFiles) -> str:
    try:
        with open(files.log_path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return f"stderr: {lines[-1]}" if lines else f"Log: {files.log_path}"
