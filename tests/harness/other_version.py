"""Run a module of the tests with the source of another version of Taskgate, for comparisons of two versions."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OTHER_VERSIONS = ROOT / "build" / "other-versions"


def source_of(commit: str) -> Path:
    """Return the source folder of another version, from the repository. `commit` may be a branch."""
    named = ["git", "rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}"]
    found = subprocess.run(named, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    folder = OTHER_VERSIONS / found
    if not folder.exists():
        archive = subprocess.run(["git", "archive", found, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder / "src"


def run_module(source: Path, module: str, *arguments: str | Path) -> str:
    """Run a module with the version in this folder, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
