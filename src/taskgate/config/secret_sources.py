"""Resolve references to secrets: environment variables, files, the platform keyring, and commands."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import stat
import subprocess
import threading
from collections.abc import Mapping as Environment
from pathlib import Path
from typing import IO, Final

from taskgate import clock
from taskgate.config.files import absolute, decode, leads_out, read_bytes
from taskgate.config.leaving import NotAllowed
from taskgate.config.problems import ConfigError, Mark, Problem, ReferenceFailed, problem_at
from taskgate.consent import Consent
from taskgate.operating_system import kill_group

MAX_SECRET_BYTES: Final = 64 << 10
COMMAND_TIMEOUT_S: Final = 10.0
KEYRING_TIMEOUT_S: Final = 10.0
_CHUNK: Final = 16 << 10


class ValueSources:
    """Resolves the references of one configuration, and collects the values so that they can be hidden.

    `consent` is that within which the configuration is used; None if it needs none.
    """

    def __init__(self, environment: Environment[str, str], folder: Path, consent: Consent | None = None) -> None:
        self.environment, self.folder, self.consent = environment, folder, consent
        self.files = list[Path]()
        self.warnings = list[Problem]()
        self.values = set[str]()
        """All resolved values; they are redacted from messages, logs and pages."""
        self._commands_allowed = False
        self._known = dict[str, str | ReferenceFailed]()

    def allow_commands(self) -> None:
        self._commands_allowed = True

    def path(self, text: str) -> str:
        """Return a path of the configuration as an absolute one. Within consent, raises NotAllowed if a link in the file's folder
        leads out of it: the user allowed a name in that folder, and a link in it can be changed later."""
        found = absolute(text, self.folder)
        if self.consent is not None and leads_out(found, self.folder):
            hint = "write the path of that file, and allow it"
            raise NotAllowed(
                [
                    Problem(
                        file=found,
                        line=0,
                        column=0,
                        key="",
                        message=f"is a link to a file outside of {self.folder}",
                        hint=hint,
                    )
                ]
            )
        return found

    def variable(self, name: str) -> str | None:
        """Return the value of `${NAME}`, or None if it is not set."""
        found = self.environment.get(name)
        if found:
            self.values.add(found)
        return found

    def value(self, kind: str, target: str, mark: Mark, key: str) -> str:
        """Return the value of `${KIND:TARGET}`. Raises ReferenceFailed."""
        reference = f"{kind}:{target}"
        if reference not in self._known:
            try:
                self._known[reference] = self._read(kind, target, mark, key)
            except ReferenceFailed as failed:
                self._known[reference] = failed
        found = self._known[reference]
        if isinstance(found, ReferenceFailed):
            raise found
        self.values.add(found)
        return found

    def _read(self, kind: str, target: str, mark: Mark, key: str) -> str:
        if kind == "file":
            text = self._from_file(target, mark, key)
        elif kind == "keyring":
            text = _from_keyring(target)
        else:
            text = self._from_command(target)
        if not text:
            raise ReferenceFailed("is empty", "store the secret there")
        return text

    def _from_file(self, target: str, mark: Mark, key: str) -> str:
        if not target.strip():
            raise ReferenceFailed("names no file", "write ${file:PATH}")
        path = Path(self.path(target))
        self.files.append(path)
        text = _decoded(_file_bytes(path))
        if os.stat(path).st_mode & stat.S_IROTH:
            message = f"the file of ${{file:{target}}} can be read by every user of this machine"
            self.warnings.append(problem_at(mark, key, message, f"chmod o-r {shlex.quote(str(path))}"))
        return text

    def _from_command(self, target: str) -> str:
        if not self._commands_allowed:
            raise ReferenceFailed("is not allowed", "write secrets: {allow_command: true} to run commands for secrets")
        try:
            argv = shlex.split(target)
        except ValueError:
            raise ReferenceFailed("has an unclosed quote", "close the quote") from None
        if not argv:
            raise ReferenceFailed("names no command", "write ${command:PROGRAM ARGUMENT}")
        return _decoded(_output(argv, self.folder))


def _file_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_SECRET_BYTES)
    except ConfigError as error:
        (problem,) = error.problems
        raise ReferenceFailed(problem.message, problem.hint) from None


def _decoded(data: bytes) -> str:
    try:
        text = decode(data, "")
    except ConfigError as error:
        raise ReferenceFailed(error.problems[0].message, "store the secret as UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def _from_keyring(target: str) -> str:
    service, _, user = target.rpartition("/")
    if not service or not user:
        raise ReferenceFailed("names no service and user", "write ${keyring:SERVICE/USER}")
    text = _keyring.get_password(service, user)
    if text is None:
        raise ReferenceFailed("is not in the keyring", f"store it: keyring set {service} {user}")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SECRET_BYTES:
        raise ReferenceFailed(f"is larger than {MAX_SECRET_BYTES} bytes", "is this the right entry?")
    return str(text)


class _Keyring:
    """The platform keyring, read in a separate thread: a locked keyring may block forever on a prompt.

    The caller times out. The blocked thread is abandoned, and no other is started until it returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def get_password(self, service: str, user: str) -> str | None:
        found: list[str | Exception | None] = []

        def read() -> None:
            try:
                # Imported on demand: the package is optional, and few configurations use it.
                import keyring

                found.append(keyring.get_password(service, user))
            except Exception as error:  # raised in the waiting thread
                found.append(error)

        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=read, name="keyring", daemon=True)
                self._reader.start()
                self._reader.join(KEYRING_TIMEOUT_S)
        return _keyring_value(found)


def _keyring_value(found: list[str | Exception | None]) -> str | None:
    if not found:
        why = f"is in a keyring that did not respond within {KEYRING_TIMEOUT_S:g} s"
        raise ReferenceFailed(why, "unlock the keyring; it may show a prompt on another screen")
    (value,) = found
    if isinstance(value, ImportError):
        why = "needs the package keyring, which is not installed"
        raise ReferenceFailed(why, 'install it: pip install "taskgate[keyring]"')
    if isinstance(value, Exception):
        # The message of a backend may contain secrets, so only the type is shown.
        raise ReferenceFailed(f"cannot be read from the keyring ({type(value).__name__})", "unlock it")
    return value


_keyring: Final = _Keyring()


def _output(argv: list[str], folder: Path) -> bytes:
    """Return the stdout of a command. A command beyond the time or size limit is killed with its process group."""
    devnull = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            argv, stdin=devnull, stdout=subprocess.PIPE, stderr=devnull, cwd=folder, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a command"
        raise ReferenceFailed(f"cannot be started ({reason})", "check the program's path") from None
    assert process.stdout is not None
    deadline = clock.monotonic() + COMMAND_TIMEOUT_S
    try:
        data = _read_until(process.stdout, deadline)
        status = process.wait(max(0.0, deadline - clock.monotonic()))
    except subprocess.TimeoutExpired:
        raise _command_timed_out() from None
    finally:
        process.stdout.close()
        if process.returncode is None:
            # Only if it is still running: a command may leave a background process such as a key agent.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill_group(process.pid)
            process.wait()
    if status != 0:
        raise ReferenceFailed(f"failed with exit status {status}", "run it in a shell to see why")
    return data


def _read_until(pipe: IO[bytes], deadline: float) -> bytes:
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - clock.monotonic())):
                raise _command_timed_out()
            chunk = os.read(pipe.fileno(), _CHUNK)
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > MAX_SECRET_BYTES:
                raise ReferenceFailed(f"prints more than {MAX_SECRET_BYTES} bytes", "is this the right command?")


def _command_timed_out() -> ReferenceFailed:
    return ReferenceFailed(
        f"took longer than {COMMAND_TIMEOUT_S:g} s", "use a command that needs no interaction, and that is faster"
    )
