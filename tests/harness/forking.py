"""Python programs that tests start are forked from a process that has already done their imports.

Most of what a gateway or an SDK's server costs a test is the start of Python: half a second to more than a second of imports, for
each of several hundred. `install` makes `subprocess` (and so `asyncio`) ask a template (`tests/harness/template.py`) for the
programs of `TEMPLATES`, one template for each Python environment and pytest process, started on first use. The result is a
program in its own process, a child of this one, with its own arguments, environment, folder, session and
descriptors.

These are started without forking: programs of other languages and environments, interpreters with options, programs whose
environment changes the interpreter, tests marked `fresh_interpreter` (about the start itself, about memory), everything
where forking does not work, and everything with TASKGATE_TEST_FORK=0.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tests.harness.absent import HOME
from tests.harness.programs import die_with_parent

import taskgate

VARIABLE: Final = "TASKGATE_TEST_FORK"
ROOT: Final = Path(__file__).resolve().parents[2]
LAUNCH: Final = Path(__file__).with_name("launch.py")
TEMPLATE: Final = Path(__file__).with_name("template.py")
# On a busy machine the imports may take long; the reply to a request takes milliseconds.
READY_S, ANSWER_S = 240.0, 60.0
# Room for the command lines that the processes will show.
ROOM: Final = "-" * 4000
PYTHON_PREFIXES: Final = ("PYTHON", "LC_", "LANG", "COVERAGE_", "MALLOC_", "LD_")
# A template applies these after the fork.
FOLLOWED: Final = frozenset({"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})

WARM_UP, TRUST_STORE = (str(Path(__file__).with_name(name)) for name in ("warm_up.py", "trust_store.py"))
_POSTGRES = ("taskgate.store.postgres.store",) if importlib.util.find_spec("psycopg") else ()
_CLI = (Path(taskgate.__file__).parent / "cli").glob("[a-z]*.py")
TEMPLATES: Final[Mapping[Path, tuple[str, ...]]] = {
    Path(sys.executable): (
        "taskgate.lifecycle.lifecycle",
        *sorted(f"taskgate.cli.{file.stem}" for file in _CLI),
        "anyio._backends._asyncio",
        "uvicorn.lifespan.off",
        "uvloop",
        "rich.console",
        # Modules that commands import on use, and that many tests need.
        "ctypes",
        "encodings.idna",
        "h11",
        "httpcore2",
        "httpx2",
        "idna",
        "jsonschema_rs",
        "rapidfuzz.distance",
        "rich.table",
        "taskgate.client",
        "taskgate.assembly.console_configuration",
        "taskgate.client.streamable_http",
        "taskgate.config.clients.takeover",
        "taskgate.dashboard.pages",
        "taskgate.dashboard.site",
        # A gateway reads or compiles the templates of its pages for the first page.
        "taskgate.dashboard.template_environment:environment",
        "tomlkit",
        "urllib.request",
        *_POSTGRES,
        WARM_UP,
    ),
    HOME / "mcp130/bin/python": (
        "mcp.server.fastmcp.server",
        "mcp.client.stdio",
        "mcp.client.streamable_http",
        "uvicorn.protocols.http.auto",
        "anyio._backends._asyncio",
        TRUST_STORE,
    ),
    HOME / "mcp23/bin/python": (
        "mcp.server.subscriptions",
        "mcp.server.stdio",
        "mcp.client.client",
        "uvicorn.protocols.http.auto",
        "anyio._backends._asyncio",
        TRUST_STORE,
    ),
    HOME / "fastmcp/bin/python": (
        "fastmcp_tasks",
        "uvicorn.protocols.http.auto",
        "anyio._backends._asyncio",
        TRUST_STORE,
    ),
}


class NoFork(Exception):
    """The program has to be started as usual; the message is the reason."""


@dataclass(slots=True)
class Template:
    """The running template of one Python environment."""

    interpreter: Path
    environment: dict[str, str]
    channel: socket.socket
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    place: Path
    answers: IO[bytes]
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, interpreter: Path, modules: tuple[str, ...]) -> Template:
        here, there = socket.socketpair()
        place = Path(tempfile.mkdtemp(prefix="template-")) / "s"
        log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the template
        with there:
            process = subprocess.Popen(
                [interpreter, TEMPLATE, str(there.fileno()), ",".join(modules), place, ROOM],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[there.fileno()],
                cwd=ROOT,
                preexec_fn=die_with_parent,
            )
        here.settimeout(READY_S)
        return cls(interpreter, _python_variables(os.environ), here, process, log, place, here.makefile("rb"))

    def fork(self, order: Mapping[str, Any], descriptors: list[int]) -> int:
        body = json.dumps(order).encode()
        with self.lock:
            try:
                self._become_ready()
                socket.send_fds(self.channel, [len(body).to_bytes(8, "big")], descriptors)
                self.channel.sendall(body)
                return self._answer("pid")
            except (OSError, ValueError, KeyError) as error:
                raise NoFork(f"{self.interpreter}: {error}") from error

    def wait(self) -> None:
        """Wait until it is ready."""
        with self.lock:
            self._become_ready()

    def _become_ready(self) -> None:
        if self.channel.gettimeout() == READY_S:
            self._answer("ready")
            self.channel.settimeout(ANSWER_S)

    def _answer(self, name: str) -> int:
        reply = json.loads(self.answers.readline() or b'{"refused": "the template has ended"}')
        if name not in reply:
            raise NoFork(f"{self.interpreter}: {reply['refused']}\n{self._wrote()}")
        number: int = reply[name]
        return number

    def _wrote(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace")

    def end(self) -> None:
        shutil.rmtree(self.place.parent, ignore_errors=True)
        self.answers.close()
        self.log.close()
        self.channel.close()
        self.process.kill()
        self.process.wait()


def _python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(PYTHON_PREFIXES) and name not in FOLLOWED
    }


class Forking:
    """The templates of this pytest process, and what it could not fork."""

    def __init__(self) -> None:
        self._templates: dict[Path, Template] = {}
        self._refused: dict[Path, str] = {}
        self.installed = False
        self.active = True
        self.forked = 0

    def close(self) -> None:
        for template in self._templates.values():
            template.end()
        self._templates.clear()

    def why_not(self) -> list[str]:
        return list(self._refused.values())

    def fork(self, given: Mapping[str, Any]) -> int:
        """The process id of the program, or NoFork."""
        command = _command_of(given)
        template = self._template(Path(command[0]))
        environment = dict(os.environ if given["env"] is None else given["env"])
        if _python_variables(environment) != template.environment:
            raise NoFork("its environment changes the interpreter")
        numbers = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        ends = [place if number == -1 else number for place, number in enumerate(numbers)]
        order = {
            "command": command,
            "environment": environment,
            "folder": os.getcwd() if given["cwd"] is None else os.fspath(given["cwd"]),
            "session": given["start_new_session"],
            "dies_with_parent": given["preexec_fn"] is die_with_parent,
            "parent": os.getpid(),
            # A test may have changed it since the template was started, and a run in the background begins without it.
            "ignored": [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_IGN],
            "targets": [0, 1, 2, *given["pass_fds"]],
        }
        try:
            pid = template.fork(order, [*ends, *given["pass_fds"]])
        except NoFork as error:
            self._refused[template.interpreter] = str(error)
            self._templates.pop(template.interpreter).end()
            raise
        self.forked += 1
        return pid

    def launched(self, interpreter: Path) -> list[str]:
        """The prefix of a command that other programs start, so that it is forked; empty if it cannot be."""
        try:
            template = self._template(interpreter)
            template.wait()
        except (NoFork, OSError, ValueError):
            return []
        return [sys.executable, "-I", "-S", str(LAUNCH), str(template.place)]

    def _template(self, interpreter: Path) -> Template:
        if not self.installed or not self.active or interpreter in self._refused or interpreter not in TEMPLATES:
            raise NoFork("not one of those that are forked")
        if interpreter not in self._templates:
            # The kernel ties a child that must not outlive its parent to the thread that started it.
            if threading.current_thread() is not threading.main_thread():
                raise NoFork("the template is started by the main thread only")
            with fresh_interpreters():
                self._templates[interpreter] = Template.start(interpreter, TEMPLATES[interpreter])
        return self._templates[interpreter]


def _command_of(given: Mapping[str, Any]) -> list[str]:
    """The arguments of a program that a template can run, or NoFork."""
    args = given["args"]
    if isinstance(args, str | bytes | os.PathLike) or given["shell"] or given["executable"] is not None:
        raise NoFork("not a list of words")
    words = [os.fsdecode(each) for each in args]
    module = words[2 if words[1:2] == ["-P"] else 1 :]
    as_module = module[:1] == ["-m"] and module[1:] and module[1].split(".")[0] == "taskgate"
    if not as_module and not (len(words) > 1 and words[1].endswith(".py") and Path(words[1]).is_absolute()):
        raise NoFork("not a module or a file")
    if not given["close_fds"] or given["preexec_fn"] not in (None, die_with_parent) or given["process_group"] != -1:
        raise NoFork("more is wanted of the new process than a template does")
    if given["umask"] != -1 or any(given[name] is not None for name in ("uid", "gid", "gids")):
        raise NoFork("it runs as another user")
    if given["cwd"] is not None and not os.path.isdir(given["cwd"]):
        raise NoFork("its folder does not exist")
    return words


FORKING: Final = Forking()
_really_start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_SIGNATURE = inspect.signature(_really_start)
EXPECTED: Final = {
    "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "shell", "p2cread", "p2cwrite", "c2pread",
    "c2pwrite", "errread", "errwrite", "gid", "gids", "uid", "umask", "start_new_session", "process_group",
}  # fmt: skip


def _execute_child(self: Any, *args: Any, **named: Any) -> None:
    given = _SIGNATURE.bind(self, *args, **named).arguments
    try:
        self.pid = FORKING.fork(given)
    except NoFork:
        _really_start(self, *args, **named)
        return
    self._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    self._close_pipe_fds(*(given[name] for name in ends))


def install() -> None:
    """Enable forking; only on Linux, and only if `subprocess` has the expected implementation."""
    if sys.platform == "linux" and os.environ.get(VARIABLE) != "0" and set(_SIGNATURE.parameters) >= EXPECTED:
        FORKING.installed = True
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


@contextlib.contextmanager
def fresh_interpreters() -> Iterator[None]:
    """Inside the block, every program is started without forking."""
    before, FORKING.active = FORKING.active, False
    try:
        yield
    finally:
        FORKING.active = before
