"""The coverage we hold: every line and branch of `core/`, and 85% of everything. Run after `coverage combine`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

OVERALL = 85.0
CORE = "src/taskgate/core/"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(report)], check=True)
        data = json.loads(report.read_text())
    overall = data["totals"]["percent_covered"]
    gaps = [
        f"  {name}: lines {file['missing_lines']} branches {file.get('missing_branches', [])}"
        for name, file in sorted(data["files"].items())
        if CORE in name and (file["missing_lines"] or file.get("missing_branches"))
    ]
    print(f"coverage: {overall:.1f}% overall (at least {OVERALL}%); {len(gaps)} file(s) of core/ have gaps (none may):")
    for gap in gaps:
        print(gap)
    return 0 if overall >= OVERALL and not gaps else 1


if __name__ == "__main__":
    sys.exit(main())
