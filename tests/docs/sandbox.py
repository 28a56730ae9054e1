"""The place where the examples of one document run: a home of its own, and a gateway with the demo server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docs.blocks import ROOT, Block, Command, commands_in
from tests.harness.forking import FORKING
from tests.harness.programs import free_port

HANG_S = 120
_FOR_A_SHELL = re.compile(r"[|&;<>$`*?~(){}\[\]#\\\n\"]")
_QUOTED = re.compile(r"'[^']*'")
AS_INSTALLED = "docs/getting-it.md"
"""Its commands are really started, by the installed script; those of the others are forked, also where a shell starts them."""
DOCUMENTED = "127.0.0.1:7467"
_FILES = {"command": "python", "args": ["-m", "taskgate.demo.files"]}
_SERVERS: dict[str, Any] = {
    "files": {**_FILES, "tags": ["local"]},
    "reports": {"url": "http://127.0.0.1:9/mcp", "tags": ["slow"]},
    "demo": _FILES,
}
BASES: dict[str, dict[str, Any]] = {
    "": {"servers": _SERVERS},
    "docs/governance.md": {"approval": {"ops": {}, "money": {}}},
    "docs/scopes.md": {"scopes": {"review": {}, "public": {}}},
}
"""What the fragments of a document rest upon: the keys that they do not show."""
_ID = re.compile(r"\b(tg|ap|tgs|tmp)[_-][\w…-]{6,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?")
_NUMBER = re.compile(r"\d+([.,]\d+)*")
_MY_SERVER = "import asyncio\nfrom taskgate.demo.files import DemoServer\nasyncio.run(DemoServer().run())\n"
_AGENT = '#!/bin/sh\necho "the agent ran"\n'
_TASKGATE = '#!/bin/sh\nexec {launched} -m taskgate "$@"\n'
_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m taskgate"* | *.py" "*) exec {launched} "$@" ;;
    *) exec {python} "$@" ;;
esac
"""
_CLIENT = {"mcpServers": {"notes": _FILES}}


@dataclass(slots=True)
class Sandbox:
    document: str
    folder: Path
    address: str
    """Of the gateway that the document talks to; a `taskgate serve` of the document itself takes its place."""
    token: str
    serving: list[subprocess.Popen[str]] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """Ids that the document shows, and those that were given out here instead."""

    def prepare(self, blocks: list[Block]) -> None:
        """The files that the document shows, and what a reader of it is supposed to have."""
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        self._write("my_server.py", _MY_SERVER)
        self._write(".home/.cursor/mcp.json", json.dumps(_CLIENT))
        self._write(
            ".home/.codex/config.toml",
            '[mcp_servers.notes]\ncommand = "python"\nargs = ["-m", "taskgate.demo.files"]\n',
        )
        self._write(".home/.claude.json", json.dumps(_CLIENT))
        self._write("bin/claude", _AGENT).chmod(0o755)
        if self.document != AS_INSTALLED:
            write_launchers(self.folder / "bin")
        for block in blocks:
            if block.file is not None:
                self._write(block.file, self.as_run(block.body))

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def as_run(self, text: str) -> str:
        """The documented address becomes the one that is served here, a placeholder for a digest a digest."""
        for shown, given in self.ids.items():
            text = text.replace(shown, given)
        return re.sub(r'"<64 hex digits[^"]*>"', '"' + "ab" * 32 + '"', text).replace(DOCUMENTED, self.address)

    @property
    def environment(self) -> dict[str, str]:
        home = self.folder / ".home"
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "TASKGATE_STATE_DIR": str(home / "state"),
            "TASKGATE_URL": f"http://{self.address}",
            "TASKGATE_TOKEN": self.token,
            "COLUMNS": "300",
        }

    def run(self, block: Block) -> None:
        commands = commands_in(block)
        for command in commands:
            expected = block.exit_code if command is commands[-1] else 0
            if command.text.startswith("make "):
                _check_target(block, command.text.split()[1])
            elif command.text.split()[:2] == ["taskgate", "serve"]:
                self._serve(block, command)
            else:
                self._run(block, command, expected)

    def _run(self, block: Block, command: Command, expected: int) -> None:
        done = subprocess.run(
            _started(self.as_run(command.text)),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == expected, (
            f"{block}: {command.text}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
        output = (done.stdout + done.stderr).splitlines()
        for line in command.shown:
            fitting = next((each for each in output if _plain(line) in _plain(each)), None)
            assert fitting is not None, f"{block}: {command.text}\ndoes not print: {line}\n{done.stdout}{done.stderr}"
            self.ids |= dict(zip(_ids_in(line), _ids_in(fitting), strict=False))

    def _serve(self, block: Block, command: Command) -> None:
        """A gateway of the document's own: it goes on while the next commands run."""
        port = free_port()
        words = f"exec {command.text.partition('#')[0].strip()} --port {port}"
        program = subprocess.Popen(
            ["bash", "-c", words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.serving.append(program)
        watchdog = threading.Timer(HANG_S, program.kill)
        watchdog.start()
        assert program.stdout is not None
        output = []
        for line in program.stdout:
            output.append(line)
            if f":{port}" in line:
                break
        watchdog.cancel()
        assert f":{port}" in "".join(output), f"{block}: {command.text}\n{''.join(output)}"
        threading.Thread(target=program.stdout.read, daemon=True).start()
        self.address = f"127.0.0.1:{port}"
        self.token = (self.folder / ".home" / "state" / "operator-token").read_text().strip()

    def end(self) -> None:
        for program in self.serving:
            program.send_signal(signal.SIGTERM)
            program.wait(HANG_S)


def write_launchers(folder: Path) -> None:
    """`taskgate` and `python`, for the beginning of a path, that are forked; nothing where programs are really started."""
    launched = FORKING.launched(Path(sys.executable))
    if launched:
        names = {"launched": shlex.join([*launched, sys.executable]), "python": shlex.quote(sys.executable)}
        folder.mkdir(exist_ok=True)
        for name, text in (("taskgate", _TASKGATE), ("python", _PYTHON)):
            (folder / name).write_text(text.format(**names))
            (folder / name).chmod(0o755)


def _started(text: str) -> list[str]:
    """A lone `taskgate` command is started without a shell in between, everything else by one."""
    if text.startswith("taskgate ") and not _FOR_A_SHELL.search(_QUOTED.sub("", text)):
        return [sys.executable, "-m", *shlex.split(text)]
    return ["bash", "-c", text]


def _check_target(block: Block, target: str) -> None:
    """The targets of the Makefile are what runs these tests; that one is there is all that can be seen from inside."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert target in targets, f"{block}: the Makefile has no target {target}"


def _ids_in(line: str) -> list[str]:
    return [found[0] for found in _ID.finditer(line)]


def _plain(line: str) -> str:
    """The text of a line without ids, times and numbers."""
    for pattern, word in ((_ID, "ID"), (_TIME, "TIME"), (_NUMBER, "N")):
        line = pattern.sub(word, line)
    return " ".join(line.replace("…", "").split())


@contextlib.contextmanager
def sandbox(document: str, folder: Path, address: str, token: str) -> Iterator[Sandbox]:
    made = Sandbox(document, folder, address, token)
    try:
        yield made
    finally:
        made.end()
