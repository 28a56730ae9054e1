"""How tests are distributed to workers, in a real run with four of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.programs import run_to_end
from tests.harness.sharing import IN_PARTS, MIN_WORKERS, ROOT, group_of

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
ALONE = """
import os, pytest

@pytest.mark.parametrize("number", range(8))
def test_alone(number):
    with open(os.environ["PYTEST_XDIST_WORKER"], "a") as log:
        log.write(f"{number} ")
"""


async def run_with_workers(folder: Path, count: int) -> None:
    (folder / "conftest.py").write_text(CONFTEST)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(count),
        "-p",
        "no:cacheprovider",
        "--rootdir",
        folder,
    ]
    place: list[str | Path] = ["env", "-C", folder, f"PYTHONPATH={ROOT}:{ROOT / 'src'}"]
    code, output, wrong = await run_to_end([*place, *command], within=240)
    assert code == 0, output + wrong


async def test_a_shared_gateway_is_started_once_and_the_last_worker_begins_at_the_end(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{name}.py" for name in ("first", "second")]
    for file in files:
        file.write_text(SHARING)
    (tmp_path / "test_third.py").write_text(ALONE)
    await run_with_workers(tmp_path, MIN_WORKERS)
    assert len((tmp_path / "started").read_text().split()) == len(files)
    done = {f"gw{number}": tmp_path / f"gw{number}" for number in range(MIN_WORKERS)}
    order = {worker: file.read_text().split() for worker, file in done.items() if file.exists()}
    assert sorted(number for numbers in order.values() for number in numbers) == [str(number) for number in range(8)]
    assert order["gw3"][0] == "7"


def test_a_test_that_shares_nothing_runs_on_any_worker() -> None:
    alone = "tests/virtual_time/test_virtual_time.py::test_one"
    assert group_of(alone) == alone


def test_a_large_file_is_split_between_workers() -> None:
    for file, parts in IN_PARTS.items():
        assert (ROOT / file).exists()
        assert len({group_of(f"{file}::test_one[{number}]") for number in range(100)}) == parts
