"""`make interaction`: the Python SDK's own interaction tests, directly and through Taskgate, as a table of what differs.

The tests come from the source distribution of `mcp` and are not changed; `through_gateway.py` replaces how they connect. What may
differ, and why, is kept in docs/compatibility.md: anything else that differs is an error, and so is a kept row that is not true any
more.

    python -m tests.sdk_interaction.run [-k EXPRESSION]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from tests.harness.absent import HOME, reason_for

PEER = "interaction23"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEPT = re.compile(r"^\| `(test_\w+\[[\w.-]+\]|test_\w+)` \| (.+) \|$", re.MULTILINE)
DEADLINE = 1800


def explained() -> dict[str, str]:
    """The kept table: what may differ, and why."""
    return dict(KEPT.findall((ROOT / "docs/compatibility.md").read_text()))


def outcomes(sources: Path, way: str, expression: str) -> dict[str, str]:
    """How each test ended: nothing if it passed, else the last line of its output."""
    report = sources / f"{way}.xml"
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "log_cli=false", "-o", "addopts=", "-p", "anyio"]
    # A stream that an earlier test left open is reported in the test in which it is collected: ignored here.
    quiet += ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    words = [str(HOME / PEER / "bin/python"), "-m", "pytest", *quiet, "-p", "through_gateway", "-n", "2"]
    words += [f"--junitxml={report}", *(["-k", expression] if expression else [])]
    environment = {
        "PYTHONPATH": str(HERE),
        "INTERACTION_WAY": way,
        "INTERACTION_PYTHON": sys.executable,
        "INTERACTION_SOURCES": str(ROOT / "src"),
    }
    folders = ["tests/interaction/lowlevel", "tests/interaction/mcpserver"]
    done = subprocess.run(
        [*words, *folders],
        cwd=sources,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if not report.exists():
        raise SystemExit(f"pytest made no report:\n{(done.stdout + done.stderr)[-3000:]}")
    return read(report)


def read(report: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        trouble = [child.get("message") or child.tag for child in case if child.tag in {"failure", "error"}]
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}.{case.get('name')}"
        found[name] = " ".join(trouble[0].split())[:200] if trouble else ""
    return found


def reason_of(name: str, kept: dict[str, str]) -> str | None:
    """A row names a test in one generation, or in all of them."""
    test = name.split(".", 1)[1]
    return kept.get(test) or kept.get(test.split("[")[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", dest="expression", help="only tests that match, as pytest has it")
    chosen = parser.parse_args()
    if reason := reason_for(PEER):
        print(f"ABSENT: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="interaction-") as folder:
        with tarfile.open(next((HOME / PEER / "sources").glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        sources = next(Path(folder).iterdir())
        direct, through = (outcomes(sources, way, chosen.expression) for way in ("direct", "through"))
    return print_table(direct, through, explained(), whole=not chosen.expression)


def print_table(direct: dict[str, str], through: dict[str, str], kept: dict[str, str], *, whole: bool) -> int:
    wrong = 0
    for way, found in (("directly", direct), ("through Taskgate", through)):
        print(f"{way}: {sum(not text for text in found.values())} of {len(found)} tests passed")
    different = {
        name: through.get(name, "was not run") for name, text in direct.items() if not text and through.get(name, "-")
    }
    for name, text in sorted(different.items()):
        reason = reason_of(name, kept)
        wrong += reason is None
        print(f"    {name}: {reason or 'NOT EXPLAINED: ' + text}")
    tests = {name.split(".", 1)[1] for name in different}
    always = [test for test, reason in kept.items() if not reason.startswith("Sometimes")]
    stale = [test for test in always if whole and not any(one == test or one.split("[")[0] == test for one in tests)]
    for test in stale:
        print(f"    {test}: is kept as different, and is not")
    print(f"{len(different)} different, {wrong} of them not explained")
    return 1 if wrong or stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
