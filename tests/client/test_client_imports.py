"""The client library imports nothing of the gateway; what an import needs and costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
OURS = (
    "taskgate",
    "taskgate.client",
    "taskgate.clock",
    "taskgate.mcp",
    "taskgate.shown_fields",
)
THEIRS = ("httptools", "msgspec")
MAX_RATIO = 1.0

ALONE = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = top == "taskgate" and not any(name == each or name.startswith(each + ".") for each in {ours!r}[1:])
        if (ours and name != "taskgate") or not (top == "taskgate" or top in {theirs!r} or top in sys.stdlib_module_names):
            raise ModuleNotFoundError("not part of the client library: " + name)

sys.meta_path.insert(0, Refuse())
import taskgate.client
for package in (taskgate.client, sys.modules["taskgate.mcp"]):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""

COST = """
import time
begun = time.process_time()
import asyncio, dataclasses, json, ssl, subprocess, urllib.parse
theirs = time.process_time()
import taskgate.client
print(theirs - begun, time.process_time() - theirs)
"""


def python(script: str, bytecode: Path | None = None) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{script}"]
    environment = {"PATH": os.environ["PATH"]} | ({"PYTHONPYCACHEPREFIX": str(bytecode)} if bytecode else {})
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout


def test_the_client_imports_nothing_but_the_wire_and_its_two_dependencies() -> None:
    python(ALONE.format(ours=OURS, theirs=THEIRS))


def test_importing_the_client_takes_no_longer_than_its_standard_library_modules(tmp_path: Path) -> None:
    """Processor time of each in one process, the quietest of several tries: both are as slow as the machine is just then.

    Together they stay below a tenth of a second on a quiet machine.
    """
    python(COST, tmp_path)  # compiles
    theirs = ours = float("inf")
    for _ in range(25):
        took = [float(seconds) for seconds in python(COST, tmp_path).split()]
        theirs, ours = min(theirs, took[0]), min(ours, took[1])
        if ours < MAX_RATIO * theirs:
            return
    raise AssertionError(f"{ours} s beside {theirs} s")
