"""A Python process that has already imported what many programs need, and becomes such a program by forking.

Run as `python template.py CHANNEL MODULES SOCKET`; `tests/harness/forking.py` starts it and sends it requests. It uses nothing
but the standard library, because it runs in the environments of other SDKs too.

The new process is a child of the template's parent, not of the template (`CLONE_PARENT`): it is awaited, signalled and ended
by its parent like any other child. It has its own arguments, environment, folder, session and
descriptors before it runs a line of the program, which is read and run from its file as `python FILE` and `python -m MODULE` do.

Programs that other programs start (servers of a gateway) use `tests/harness/launch.py` and the socket instead; a separate
process supervises each of them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

CLONE3 = 435
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
PR_SET_PDEATHSIG = 1
# The maximum offset of the thread id in the C library's thread descriptor.
THREAD_BYTES = 2048
MAX_DESCRIPTORS = 64
# State that modules read from their process at import, and that each process must have for itself.
RENEWED = (("taskgate.gateway.requests.request", "_STARTED", ("secrets", "token_hex"), (8,)),)

# `syscall` must not let another thread run in between, so the library is opened as one that keeps the interpreter's lock.
LIBC = ctypes.PyDLL(None, use_errno=True)


class CloneArguments(ctypes.Structure):
    """`struct clone_args` of the kernel, first version."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


def thread_number_address() -> int:
    """The address at which the C library stores the id of this thread: in a new process it must be replaced, as fork() does."""
    LIBC.pthread_self.restype = ctypes.c_void_p
    start: int = LIBC.pthread_self()
    numbers = (ctypes.c_int * (THREAD_BYTES // 4)).from_address(start)
    found = [place for place, number in enumerate(numbers) if number == os.getpid()]
    if not found:
        raise OSError("the C library keeps the thread's number in an unknown place")
    return start + 4 * found[0]


def fork_for_parent(thread_number: int) -> int:
    """`os.fork()`, except that the new process is our sibling."""
    asked = CloneArguments(flags=CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, child_tid=thread_number)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = LIBC.syscall(CLONE3, ctypes.byref(asked), ctypes.sizeof(asked))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return pid


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request and its descriptors; None when the channel is closed."""
    head, descriptors, _, _ = socket.recv_fds(channel, 8, MAX_DESCRIPTORS)
    if not head:
        return None
    left = int.from_bytes(head, "big")
    body = bytearray()
    while len(body) < left:
        body += channel.recv(left - len(body))
    return json.loads(body), descriptors


def place(descriptors: list[int], targets: list[int]) -> None:
    """Each descriptor under the number that the program expects."""
    above = max(targets) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, target in zip(moved, targets, strict=True):
        os.dup2(each, target)
        os.close(each)


def open_standard_streams() -> None:
    """Open the standard streams as the interpreter does at its start, for the current descriptors."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, f"__{name}__")
        at_once = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
        whole_lines = (number == 2 or os.isatty(number)) and not at_once
        buffer: Any = open(number, f"{mode}b", 0 if at_once else -1, closefd=False)  # noqa: SIM115 - as long as the process
        new = io.TextIOWrapper(buffer, old.encoding, old.errors, None, whole_lines, at_once)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def show_command_line(words: list[str]) -> None:
    """What `ps` and /proc show of this process, as far as there is room."""
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def take_over(order: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Set everything that a started program has for itself; return its command."""
    if order["session"]:
        os.setsid()
    if order["dies_with_parent"]:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != order["parent"]:
            os.kill(os.getpid(), signal.SIGKILL)
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in order["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    os.chdir(order["folder"])
    place(descriptors, order["targets"])
    open_standard_streams()
    show_command_line(order["command"])
    renew()
    os.execve = exec_by_fork  # type: ignore[assignment]
    command: list[str] = order["command"]
    return command


def renew() -> None:
    """Create what each process must have for itself."""
    for module, name, maker, arguments in RENEWED:
        if module in sys.modules:
            made = getattr(importlib.import_module(maker[0]), maker[1])
            setattr(sys.modules[module], name, made(*arguments))


def run(command: list[str]) -> None:
    """Run the program in a new `__main__`. Its exceptions end the process as usual."""
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.orig_argv = command
    _, *words = command
    if is_safe := words[0] == "-P":
        del words[0]
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined] # what `python -m` itself calls
        return
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
    main.__dict__["__file__"] = words[0]
    with open(words[0], "rb") as file:
        code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


def exec_by_fork(path: str, command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """`os.execve` of a forked program: another program of this interpreter keeps the imports. As after a real one the arguments,
    environment, streams and handlers of signals are new, and descriptors that are not inheritable are closed."""
    module = command[1:3] == ["-m", "taskgate"] or command[1:4] == ["-P", "-m", "taskgate"]
    file = len(command) > 1 and command[1].endswith(".py")
    if path != sys.executable or not (module or file) or python_variables(environment) != python_variables(os.environ):
        really_exec(path, command, environment)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.get_inheritable(int(name)):
                os.close(int(name))
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = SEARCHED
    open_standard_streams()
    show_command_line(command)
    renew()
    run_to_end(command)


really_exec = os.execve
SEARCHED: list[str] = []


def run_to_end(command: list[str]) -> NoReturn:
    """Run the program and end the process as its interpreter would."""
    try:
        run(command)
    except SystemExit as ending:
        if ending.code is None or (type(ending.code) is int and 0 <= ending.code < 256):
            end(ending.code or 0)
        print(ending.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    else:
        end(0)
    end(1)


def refuse(channel: socket.socket, why: str) -> NoReturn:
    channel.sendall(json.dumps({"refused": why}).encode() + b"\n")
    raise SystemExit(0)


def prepare(channel: socket.socket, modules: list[str]) -> int:
    """Import everything, and make sure that a fork inherits nothing that it should not. `MODULE:FUNCTION` is also
    called, and a file is run."""
    try:
        for name in modules:
            if name.endswith(".py"):
                runpy.run_path(name, run_name="__template__")
                continue
            module, _, function = name.partition(":")
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        number = thread_number_address()
    except Exception as error:
        refuse(channel, f"{type(error).__name__}: {error}")
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        refuse(channel, "an import has started a thread")
    opened = {int(each) for each in os.listdir("/proc/self/fd")} - {0, 1, 2, channel.fileno()}
    if [each for each in opened if os.path.exists(f"/proc/self/fd/{each}")]:
        refuse(channel, "an import has left a file open")
    gc.collect()
    gc.freeze()
    return number


def serve(channel: socket.socket, modules: list[str], place: str) -> list[str] | None:
    """Fork for every request; return the command in the new processes, and None in the template when the channel is closed."""
    thread_number = prepare(channel, modules)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    channel.sendall(json.dumps({"ready": os.getpid()}).encode() + b"\n")
    while True:
        waiting, _, _ = select.select([channel, listener], [], [])
        reap()
        if listener in waiting:
            connection, _ = listener.accept()
            if os.fork() == 0:
                channel.close()
                listener.close()
                return keep(connection)
            connection.close()
        if channel in waiting:
            asked = receive(channel)
            if asked is None:
                return None
            pid = fork_for_parent(thread_number)
            if pid == 0:
                listener.close()
                return become(channel, *asked)
            for each in asked[1]:
                os.close(each)


def reap() -> None:
    """Reap the supervisors whose programs have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def keep(connection: socket.socket) -> list[str]:
    """Supervise a program for `launch.py`; return its command in the new process."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    asked = receive(connection)
    if asked is None or python_variables(asked[0]["environment"]) != python_variables(os.environ):
        os._exit(0)
    order, descriptors = asked
    sys.path[:0] = [each for each in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if each]
    watcher = os.getpid()
    pid = os.fork()
    if pid:
        for each in descriptors:
            os.close(each)
        connection.sendall(b"+")
        watch(connection, pid)
    connection.close()
    order |= {"session": True, "dies_with_parent": True, "parent": watcher, "targets": [0, 1, 2], "ignored": []}
    return take_over(order, descriptors)


def watch(connection: socket.socket, pid: int) -> NoReturn:
    """Forward signals until the program or its launcher has ended."""
    ended = os.pidfd_open(pid)
    while ended not in (waiting := select.select([ended, connection], [], [])[0]):  # type: ignore[type-var]
        if waiting:
            signals = connection.recv(64)
            for number in signals or [signal.SIGKILL]:
                os.kill(pid, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter itself goes by, except for what is followed after the fork.

    Clients and gateways do not pass PYTHONPATH on, and it has no effect where nothing was found by it. Where no language is set
    an interpreter sets UTF-8 for itself and its children (PEP 538), and a template does the same.
    """
    followed = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", *(() if found_by_path() else ("PYTHONPATH",))}
    if environment.get("LC_CTYPE") == "C.UTF-8" and sys.getfilesystemencoding() == "utf-8":
        followed.add("LC_CTYPE")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_", "COVERAGE_", "MALLOC_", "LD_")) and name not in followed
    }


def found_by_path() -> bool:
    """Whether a module was imported from a folder of PYTHONPATH."""
    folders = tuple(f"{each}{os.sep}" for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    return any(file.startswith(folders) for file in files if file != __file__)


def become(channel: socket.socket, order: dict[str, Any], descriptors: list[int]) -> list[str]:
    """In the new process: reply to the request once the process leads its session, as a started program does."""
    reply = socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, max(order["targets"]) + 1))
    channel.close()
    try:
        command = take_over(order, descriptors)
    except Exception as error:
        refuse(reply, f"{type(error).__name__}: {error}")
    reply.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    reply.close()
    return command


def end(code: int) -> NoReturn:
    """Do what an interpreter does at its end and other processes can notice, without finalizing all modules."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as every end of an interpreter begins
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # The reader is gone: let the interpreter report it and choose the exit code.
        sys.exit(code)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Programs must not import modules from this folder.
    del sys.path[0]
    SEARCHED[:] = sys.path
    becoming = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2].split(","), sys.argv[3])
    if becoming is not None:
        try:
            run(becoming)
        except SystemExit as ending:
            if type(ending.code) is not int or not 0 <= ending.code < 256:
                raise
            end(ending.code)
        end(0)
