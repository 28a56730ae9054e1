"""The coverage we hold. Run after `coverage combine`, with `core` after the tests of core/ (every line and branch of it, by its own
tests; part of `make test`) and with `overall` after all tests (85% of everything; `make coverage`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OVERALL = 85.0
CORE = "src/taskgate/core/"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(report)], check=True)
        data = json.loads(report.read_text())
    return core(data) if sys.argv[1:] == ["core"] else overall(data)


def core(data: dict[str, Any]) -> int:
    gaps = [
        f"  {name}: lines {file['missing_lines']} branches {file.get('missing_branches', [])}"
        for name, file in sorted(data["files"].items())
        if CORE in name and (file["missing_lines"] or file.get("missing_branches"))
    ]
    print(f"coverage of core/ by its own tests: {len(gaps)} file(s) have gaps (none may):")
    for gap in gaps:
        print(gap)
    return 1 if gaps else 0


def overall(data: dict[str, Any]) -> int:
    percent = data["totals"]["percent_covered"]
    print(f"coverage: {percent:.1f}% overall (at least {OVERALL}%)")
    return 0 if percent >= OVERALL else 1


if __name__ == "__main__":
    sys.exit(main())
