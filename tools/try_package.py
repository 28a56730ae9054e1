"""`make package`: builds the wheel and the sdist, installs each in a clean environment, and tries the command there.

Every Python from 3.11 to 3.14 that can be found is tried, and pipx and uvx where they are installed. What is absent is listed
at the end: nothing is left out silently.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
INSTALL_SECONDS = 900


def main() -> int:
    absent: list[str] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        for version in VERSIONS:
            python = interpreter(version)
            if python is None:
                absent.append(f"Python {version}: install it, or put python{version} on the PATH")
                continue
            for package in (wheel, sdist) if version == VERSIONS[0] else (wheel,):
                tried(f"{package.suffix} on Python {version}", failed, lambda p=package, i=python: clean(folder, i, p))
        for tool, words in (("pipx", ["pipx", "run", "--spec"]), ("uvx", ["uvx", "--from"])):
            if shutil.which(tool) is None:
                absent.append(f"{tool}: pip install {'uv' if tool == 'uvx' else tool}")
                continue
            tried(tool, failed, lambda w=words: run(*w, str(wheel), "taskgate", "--version"))
    for line in absent:
        print(f"ABSENT  {line}")
    return 1 if failed else 0


def build(folder: Path) -> tuple[Path, Path]:
    python = environment(folder / "build", sys.executable)
    run(python, "-m", "pip", "install", "--quiet", "hatchling")
    run(python, "-m", "hatchling", "build", "-d", str(folder / "dist"), cwd=ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def clean(folder: Path, python: str, package: Path) -> None:
    """Install and try as a newcomer would, with an empty home folder."""
    place = Path(tempfile.mkdtemp(dir=folder))
    inside = environment(place / "venv", python)
    run(inside, "-m", "pip", "install", "--quiet", str(package))
    command = str(Path(inside).with_name("taskgate"))
    home = {**os.environ, "HOME": str(place), "PYTHONPATH": ""}
    for words in (["--version"], ["init", "--yes"], ["check"], ["schema"]):
        run(command, *words, cwd=place, env=home)
    run(inside, "-c", "import taskgate.client", cwd=place, env=home)


def tried(what: str, failed: list[str], attempt: object) -> None:
    assert callable(attempt)
    try:
        attempt()
    except subprocess.CalledProcessError as error:
        failed.append(what)
        print(f"FAILED  {what}: {(error.stderr or error.stdout or '').strip()[-800:]}")
    else:
        print(f"ok      {what}", flush=True)


def interpreter(version: str) -> str | None:
    """A real Python of this version; version managers put stand-ins on the PATH that only say what is missing."""
    managed = sorted(PYENV.glob(f"{version}.*/bin/python"))
    for candidate in (*map(str, reversed(managed)), shutil.which(f"python{version}")):
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(place: Path, python: str) -> str:
    if Path(python).resolve() == Path(sys.executable).resolve():
        venv.create(place, with_pip=True)
    else:
        run(python, "-m", "venv", str(place))
    return str(place / "bin" / "python")


def run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(words, cwd=cwd, env=env, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
