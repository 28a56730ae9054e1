"""A package imported without its `__init__` module works as usual for other code in the same process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys
from taskgate.bare_packages import bare_package
bare_package(sys.argv[1])
__import__(sys.argv[2])
assert sys.argv[4] not in sys.modules
import importlib
package = importlib.import_module(sys.argv[1])
assert hasattr(package, sys.argv[3])
assert sys.argv[4] in sys.modules
assert not hasattr(package, "no_such_name")
bare_package("no_such_package")
assert "no_such_package" not in sys.modules
"""


@pytest.mark.parametrize(
    "names",
    [
        ("uvicorn", "uvicorn.server", "run", "uvicorn.main"),
        ("watchfiles", "watchfiles._rust_notify", "awatch", "watchfiles.main"),
    ],
    ids=lambda names: str(names[0]),
)
def test_first_module_of_a_package_runs_when_one_of_its_names_is_read(names: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-c", PROBE, *names], check=True, timeout=120)
