"""Rebuilds the store from synced writes only, at every moment something had been acknowledged, and compares.

The check needs strace. It counts because it fails on stores that are broken on purpose: one that syncs now and then,
and one that does not sync its result files.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.busy_store import WITHOUT_CHECKPOINT
from tests.chaos.synced_writes import TRACED, Moment, moments

from taskgate.core.audit.chain import ChainIntact, verify
from taskgate.core.tasks.state import TaskState
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.task_queries import FindTask, ResultBytes, TasksPage
from taskgate.store.sqlite.store import open_store

RUNS = 30
PROGRAM = Path(__file__).parent / "busy_store.py"


def test_strace_is_installed() -> None:
    assert shutil.which("strace"), "strace is missing: install it, or nothing checks what survives a power cut"


def traced(folder: Path, broken: str = "none") -> Path:
    disk = folder / "disk"
    disk.mkdir()
    trace = folder / "trace"
    command = ["strace", "-f", "-y", "-xx", "-s", "200000", "-o", str(trace), "-e", f"trace={TRACED}"]
    program = [sys.executable, str(PROGRAM), str(disk / "store.db"), str(RUNS), broken]
    subprocess.run([*command, *program], check=True, timeout=90, stdout=subprocess.PIPE)
    return trace


async def lost(moment: Moment, folder: Path) -> list[str]:
    """The acknowledgements that the rebuilt store does not keep."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    root = next(path for path in moment.files if path.endswith("store.db")).removesuffix("store.db")
    for path, content in moment.files.items():
        file = folder / path.removeprefix(root)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    store = open_store(folder / "store.db")
    try:
        assert store.engine._reading.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert isinstance(verify(await store.ask(AuditRows(limit=10_000))), ChainIntact)
        missing = []
        for line in moment.acknowledged:
            word, task_id, digest = line.split(" ")
            task = await store.ask(FindTask(task_id))
            kept = task is not None
            if task is not None and word == "intended":
                kept = task.attempts == 1
            if task is not None and word == "finished":
                body = await body_of(store, task_id)
                kept = task.state is TaskState.COMPLETED and hashlib.sha256(body).hexdigest() == digest
            if not kept:
                missing.append(line)
        return missing
    finally:
        await store.close()


async def body_of(store, task_id: str) -> bytes:  # type: ignore[no-untyped-def]
    try:
        return await store.ask(ResultBytes(task_id)) or b""
    except FileNotFoundError:
        return b""


async def check(trace: Path, folder: Path, *, torn: bool = False) -> tuple[int, list[str]]:
    """How many acknowledgements there were, and what the first bad moment had lost. Two may leave with one write."""
    acknowledged = 0
    for number, moment in enumerate(moments(trace, folder / "disk", torn=torn), 1):
        acknowledged = len(moment.acknowledged)
        if number % 3 == 0 and (missing := await lost(moment, folder / "rebuilt")):
            return acknowledged, missing
    return acknowledged, []


def test_the_recorded_run_contains_result_files_and_a_checkpoint(tmp_path: Path) -> None:
    for moment in moments(traced(tmp_path), tmp_path / "disk"):
        sizes = {path.rpartition("/")[2]: len(content) for path, content in moment.files.items()}
    assert sizes["store.db"] > WITHOUT_CHECKPOINT, "nothing was ever moved from the log to the database"
    assert sum(name.startswith("tg_") for name in sizes) == RUNS // 5


@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_in_a_power_cut(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    count, missing = asyncio.run(check(trace, tmp_path))
    assert count == 3 * RUNS
    assert missing == []
    count, missing = asyncio.run(check(trace, tmp_path, torn=True))
    assert missing == [], "an unsynced write that reached the disk by chance did harm"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("broken", ["normal-sync", "no-file-sync"])
def test_the_check_finds_a_store_that_does_not_sync(tmp_path: Path, broken: str) -> None:
    _, missing = asyncio.run(check(traced(tmp_path, broken), tmp_path))
    assert missing, f"the check did not notice a store broken by {broken}"
    if broken == "no-file-sync":
        assert all(line.startswith("finished") for line in missing)


FAILING_SYNC = """
import asyncio, os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from tests.chaos.busy_store import a_call
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Change
from taskgate.store.operations.task_queries import FindTask, TasksPage
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite.store import open_store

async def main():
    store = open_store(Path({path!r}))
    os.write(2, b"the store is open")
    good, bad = [], 0
    for _ in range(40):
        call = a_call()
        try:
            assert isinstance(await store.do(Accept(call)), Change)
            good.append(call.id)
        except GatewayFault as fault:
            bad += fault.error_type == "store_unavailable" and fault.executed == "no"
            assert await store.ask(FindTask(call.id)) is None
    await store.close()
    again = open_store(Path({path!r}))
    found = [task.id for task in (await again.ask(TasksPage("carol"))).tasks]
    assert sorted(found) == sorted(good), (found, good)
    await again.close()
    print(len(good), bad)

asyncio.run(main())
"""


REFUSED_THEN_KILLED = """
import asyncio, os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from tests.chaos.busy_store import a_call
from taskgate.core.errors import GatewayFault
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite.store import open_store

async def main():
    store = open_store(Path({path!r}))
    os.write(2, b"the store is open")
    while True:
        call = a_call()
        try:
            await store.do(Accept(call))
            os.write(1, f"accepted {{call.id}}\\n".encode())
        except GatewayFault:
            os.write(1, f"refused {{call.id}}\\n".encode())
            os._exit(0)

asyncio.run(main())
"""


def failing_syncs(path: Path, which: str) -> list[str]:
    """strace, so that some syncs of the writer fail. `which` counts its syncs from the first one that only it makes."""
    assert asyncio.run(kept_in(path)) == set()
    before = syncs_to_pass(path)
    counted = re.sub(r"(?<!\+)\d+", lambda found: str(int(found[0]) + before), which)
    inject = f"inject=fdatasync:error=EIO:when={counted}"
    return ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", inject]


def syncs_to_pass(path: Path) -> int:
    """Syncs are counted for each thread: so many the writer makes before the store is open, or any other thread makes at all.
    A program without faults is watched to find out.
    """
    trial = path.with_name("trial")
    shutil.copytree(path.parent, trial, ignore=shutil.ignore_patterns("trial"))
    program = FAILING_SYNC.format(here=str(PROGRAM.parent), path=str(trial / path.name))
    trace = path.with_name("trial.trace")
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync,write", sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    lines = trace.read_text().splitlines()
    opened = next(number for number, line in enumerate(lines) if "the store is open" in line)
    shutil.rmtree(trial)
    trace.unlink()
    syncs = [[line.split()[0] for line in part if "fdatasync(" in line] for part in (lines[:opened], lines[opened:])]
    ((writer, _),) = Counter(syncs[1]).most_common(1)
    others = Counter(thread for part in syncs for thread in part if thread != writer)
    passed = max(syncs[0].count(writer), *others.values(), 0)
    assert sum(part.count(writer) for part in syncs) > passed + 8, "the writer must have syncs of its own left to fail"
    return passed


async def kept_in(path: Path) -> set[str]:
    store = open_store(path)
    kept = {task.id for task in (await store.ask(TasksPage("carol"))).tasks}
    await store.close()
    return kept


def test_a_write_refused_after_a_failed_sync_is_absent_after_a_crash(tmp_path: Path) -> None:
    """The bytes of a commit whose sync failed are in the log. The next process must not find them there."""
    path = tmp_path / "store.db"
    program = REFUSED_THEN_KILLED.format(here=str(PROGRAM.parent), path=str(path))
    inject = failing_syncs(path, "4+")
    done = subprocess.run(
        [*inject, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    received = [line.split() for line in done.stdout.splitlines()]
    accepted, refused = ({name for word, name in received if word == kind} for kind in ("accepted", "refused"))
    assert refused, done.stderr
    assert accepted
    assert asyncio.run(kept_in(path)) == accepted


def test_a_sync_that_fails_is_never_acknowledged(tmp_path: Path) -> None:
    """Bad input: fsync error. strace makes some syncs of the writer's commits fail with an input/output error."""
    program = FAILING_SYNC.format(here=str(PROGRAM.parent), path=str(tmp_path / "store.db"))
    inject = failing_syncs(tmp_path / "store.db", "2..6+2")
    done = subprocess.run(
        [*inject, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    good, bad = map(int, done.stdout.split())
    assert bad >= 1, "no sync failed, so nothing was tested"
    assert good + bad == 40
