"""Tests that share a gateway run in one worker: seen in a real run with two of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.programs import run_to_end
from tests.harness.sharing import IN_PARTS, ROOT, group_of

CONFTEST = """
from tests.harness.sharing import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
SHARING = """
import os, pytest

@pytest.fixture(scope="module")
def gateway():
    with open("started", "a") as log:
        log.write(f"{os.getpid()} ")

@pytest.mark.parametrize("number", range(8))
def test_one(gateway, number):
    pass
"""


async def test_a_shared_gateway_is_started_once_however_many_workers_there_are(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    files = [tmp_path / f"test_{name}.py" for name in ("first", "second")]
    for file in files:
        file.write_text(SHARING)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    place = ["env", "-C", tmp_path, f"PYTHONPATH={ROOT}:{ROOT / 'src'}"]
    code, said, wrong = await run_to_end([*place, *command], within=240)
    assert code == 0, said + wrong
    assert len((tmp_path / "started").read_text().split()) == len(files)


def test_a_test_that_shares_nothing_is_free_to_go_anywhere() -> None:
    alone = "tests/seam/test_the_seam.py::test_one"
    assert group_of(alone) == alone


def test_a_large_file_is_dealt_out_in_parts() -> None:
    for file, parts in IN_PARTS.items():
        assert (ROOT / file).exists()
        assert len({group_of(f"{file}::test_one[{number}]") for number in range(100)}) == parts
