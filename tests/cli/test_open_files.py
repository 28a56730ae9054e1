"""A gateway raises its limit of open files to the maximum: every connection is one."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource
from taskgate.cli.run_gateway import allow_many_open_files

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
allow_many_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_gateway_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == (65_536 if maximum == resource.RLIM_INFINITY else min(maximum, 65_536))
