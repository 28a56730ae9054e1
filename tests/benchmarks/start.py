"""CPU seconds of each start, compared with `python -c pass` in the same run: `make bench-start`.

Every start is a new process. The starts take turns, and the least of all rounds is printed, because other load on the machine only
adds to CPU time. `serve` is measured until it has answered `initialize`, `stdio` together with the gateway that it starts; the
programs of configured servers are not counted. `--source DIR` measures another checkout, for example the state before a change.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.programs import free_port

ROOT = Path(__file__).resolve().parents[2]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "start", "version": "1"}},
}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
DEADLINE_S = 120
CONTROL = "python -c pass"


def python_build() -> str:
    """Describe the interpreter: figures of different builds cannot be compared."""
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        build = "with profile-guided optimization"
    elif sys.base_prefix == "/usr":
        # Debian records the options of another variant than the one that it installs.
        build = "of the distribution, which does not say how it was built"
    else:
        build = "without profile-guided optimization"
    return f"{sys.implementation.name} {sys.version.split()[0]}, {build}"


class Starts:
    """Measures starts of one checkout."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def command(self, *arguments: str, state: Path | None = None, url: str = "") -> float:
        """Return the CPU seconds of a command until it ends."""
        with self._folder() as folder:
            env = self._environment(folder)
            if state is not None:
                env |= {"TASKGATE_STATE_DIR": str(state), "TASKGATE_URL": url}
            program = subprocess.Popen(
                [sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            _, _, used = os.wait4(program.pid, 0)
            program.returncode = 0
            return used.ru_utime + used.ru_stime

    def tasks_list(self) -> float:
        with self._folder() as folder, self._gateway(folder) as (_, url):
            return self.command("-m", "taskgate", "tasks", "list", state=folder / "state", url=url)

    def serve(self) -> float:
        with self._folder() as folder, self._gateway(folder) as (pid, _):
            return cpu_seconds(pid)

    def stdio(self) -> float:
        with self._folder() as folder:
            file, _ = self._configuration(folder)
            bridge = subprocess.Popen(
                [sys.executable, "-m", "taskgate", "stdio", "-c", str(file)],
                env=self._environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert bridge.stdin is not None
            assert bridge.stdout is not None
            bridge.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
            bridge.stdin.flush()
            bridge.stdout.readline()
            gateway = json.loads(next((folder / "state" / "run").glob("*.json")).read_text())["pid"]
            try:
                return cpu_seconds(bridge.pid) + cpu_seconds(gateway)
            finally:
                bridge.stdin.close()
                bridge.stdout.close()
                bridge.wait()
                os.kill(gateway, signal.SIGTERM)

    @contextmanager
    def _gateway(self, folder: Path) -> Iterator[tuple[int, str]]:
        """Run a gateway that has answered `initialize`; yield its process id and address."""
        file, url = self._configuration(folder)
        program = subprocess.Popen(
            [sys.executable, "-m", "taskgate", "serve", "-c", str(file)],
            env=self._environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            request = urllib.request.Request(f"{url}/mcp", json.dumps(INITIALIZE).encode(), HEADERS)
            deadline = time.monotonic() + DEADLINE_S
            while True:
                try:
                    urllib.request.urlopen(request, timeout=30).read()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            yield program.pid, url
        finally:
            program.terminate()
            program.wait()

    def _configuration(self, folder: Path) -> tuple[Path, str]:
        file, port = folder / "taskgate.yaml", free_port()
        server = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
        file.write_text(json.dumps({"schema": 1, "servers": {"files": server}, "listen": {"port": port}}))
        return file, f"http://127.0.0.1:{port}"

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **os.environ,
            "TASKGATE_STATE_DIR": str(folder / "state"),
            "HOME": str(folder),
            "PYTHONPATH": str(self._source / "src"),
        }

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as name:
            yield Path(name)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a running process so far, of all its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def measurements(starts: Starts) -> dict[str, tuple[Callable[[], float], float | None]]:
    """Return each start with its target in CPU seconds."""
    return {
        CONTROL: (lambda: starts.command("-c", "pass"), None),
        "python -c 'import asyncio'": (lambda: starts.command("-c", "import asyncio"), None),
        "taskgate --version": (lambda: starts.command("-m", "taskgate", "--version"), 0.15),
        "taskgate --help": (lambda: starts.command("-m", "taskgate", "--help"), 0.20),
        "taskgate tasks list": (starts.tasks_list, 0.25),
        "taskgate serve, to its first answer": (starts.serve, 0.70),
        "taskgate stdio, cold, with its gateway": (starts.stdio, 1.00),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of each start, compared with python -c pass.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", type=Path, default=ROOT, help="checkout to measure; default: this one")
    given = parser.parse_args()
    measured = measurements(Starts(given.source))
    minimum = dict.fromkeys(measured, float("inf"))
    for _ in range(given.rounds):
        for name, (measure, _) in measured.items():
            minimum[name] = min(minimum[name], measure())
    print(f"{python_build()}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; least of {given.rounds}\n")
    print("| start | CPU s | times the control | target |\n|---|---|---|---|")
    for name, (_, target) in measured.items():
        goal = "" if target is None else f"{target:.2f}"
        print(f"| `{name}` | {minimum[name]:.3f} | {minimum[name] / minimum[CONTROL]:.1f} | {goal} |")


if __name__ == "__main__":
    main()
