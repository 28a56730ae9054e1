"""Deselects tests whose real peer this machine lacks, and reports them by name and reason at the end of the run.

It also keeps the run short: programs that tests start are not measured for coverage, because the tests in the process reach the
same lines, and measuring makes a program half as slow again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import pkgutil
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import coverage
import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.harness.absent import all_absent, reason_for  # noqa: E402
from tests.harness.forking import FORKING, fresh_interpreters, install  # noqa: E402
from tests.harness.node_reuse import NODE_AGAIN  # noqa: E402
from tests.harness.postgres import end_left_over  # noqa: E402
from tests.harness.process_state import kept  # noqa: E402
from tests.harness.reach import reaches_programs  # noqa: E402
from tests.harness.scratch import scratch_in_memory  # noqa: E402
from tests.harness.sharing import GroupScheduling, check_groups, group_of  # noqa: E402
from tests.harness.trust_store import read_trust_store_once  # noqa: E402
from tests.virtual_time.conditions import virtual_loop  # noqa: E402

from taskgate import core  # noqa: E402

if TYPE_CHECKING:
    from tests.harness.browser import Chromium

TraceFunction = Callable[[FrameType, str, Any], Any]
NOT_RUN: Counter[str] = Counter()
FAILED = pytest.StashKey[bool]()
TRACER = pytest.StashKey[TraceFunction | None]()
CORE_TRACER = pytest.StashKey[TraceFunction | None]()
FORKED = "forked programs"
NOT_FORKED: set[str] = set()
MEASURES_PROGRAMS = "COVERAGE_PROCESS_CONFIG"

# The tests start hundreds of gateways: without compiled modules each would spend seconds on compiling the same files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SCRATCH = scratch_in_memory()
if SCRATCH is not None:
    # What Node compiled for one program serves the next.
    os.environ.setdefault("NODE_COMPILE_CACHE", str(SCRATCH / "node"))

# On a busy machine any example may be slow; speed is tested by benchmarks. The examples are the same in every run,
# so that the same commit is green or red everywhere; HYPOTHESIS_PROFILE=default looks for new ones. `make test` uses few of
# them, because generating takes much of its time; `make mutants` and `make properties` use more.
for profile, max_examples in (("quick", 10), ("mutants", 100), ("thorough", 400)):
    settings.register_profile(profile, deadline=None, derandomize=True, max_examples=max_examples)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Loading and collecting create almost no garbage, and their objects stay: they are excluded from garbage collection.
gc.disable()
# A gateway makes tens of thousands of objects in a few milliseconds: with the interpreter's own thresholds (700, 10, 10) a test run
# spends a sixteenth of its time on looking through objects that are in use. Those of a test are collected by the next tests.
GC_THRESHOLDS = (20_000, 20, 20)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    _stop_measuring_between_core_tests(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def _stop_measuring_between_core_tests(config: pytest.Config) -> None:
    """With `make core`, everything but the import of core/ and the calls of its tests runs without tracing: tracing triples the
    time of the collection. A process that distributes tests to workers executes none of them and measures nothing."""
    measured = coverage.Coverage.current()
    if measured is None:
        return
    if _distributes_tests(config):
        sys.settrace(None)
    elif measured.get_option("run:source") == [core.__name__]:
        for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
            importlib.import_module(module.name)
        config.stash[CORE_TRACER] = sys.gettrace()  # type: ignore[misc]
        sys.settrace(None)


def _distributes_tests(config: pytest.Config) -> bool:
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def pytest_collection_finish() -> None:
    """All HTTP libraries have been imported by now."""
    read_trust_store_once()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Only the process that made the folder removes it, and not after a failure, when its files are needed."""
    FORKING.close()
    NODE_AGAIN.close()
    if SCRATCH is not None:
        end_left_over(SCRATCH)
    if SCRATCH is not None and not config.stash.get(FAILED, False):
        shutil.rmtree(SCRATCH, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker that takes long to end (it may have a database to stop) is killed: what it measured is kept before that."""
    session.config.stash[FAILED] = session.testsfailed > 0
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[FORKED] = (FORKING.forked, FORKING.why_not())
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.save()


def pytest_configure(config: pytest.Config) -> None:
    install()
    config.addinivalue_line(
        "markers", "fresh_interpreter: programs are started, not forked from a process that has their imports"
    )
    config.addinivalue_line("markers", "virtual_time: runs in the test's process, on a loop whose time is virtual")
    config.addinivalue_line("markers", "real_processes: in a module of virtual time, a test that needs real ones")
    config.addinivalue_line("markers", "starts_programs: set by itself; left out by `make quick`")
    config.addinivalue_line(
        "markers", "unmeasured: large input, or CPU time compared; left out of the measured coverage"
    )
    config.addinivalue_line("markers", "peers(*names): needs these environments of tools/peers.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--programs",
        choices=("only", "none"),
        help="collect only the files that start programs, or only the others; by default both",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Every worker collects all files of its run, which takes it many seconds: two runs of a part each collect half of it."""
    part = config.getoption("programs")
    if part is None or not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    return True if reaches_programs(collection_path) != (part == "only") else None


def _in_virtual_time(item: pytest.Item) -> bool:
    return item.get_closest_marker("virtual_time") is not None and item.get_closest_marker("real_processes") is None


def _mark_what_starts_programs(items: list[pytest.Item]) -> None:
    for item in items:
        if not _in_virtual_time(item) and reaches_programs(item.path):
            item.add_marker(pytest.mark.starts_programs)


def _end_only_hangs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test has a shorter timeout than the configured one."""
    minimum = float(config.getini("timeout"))
    for item in items:
        given = item.get_closest_marker("timeout")
        if given is not None and (not given.args or given.args[0] < minimum):
            item.add_marker(pytest.mark.timeout(minimum), append=False)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a loop whose time is virtual; the programs they start run on the same loop."""
    return {"virtual": virtual_loop} if _in_virtual_time(item) else {"real": asyncio.new_event_loop}


@contextlib.contextmanager
def _measured_in_its_call(item: pytest.Item) -> Iterator[None]:
    """Tests of core/ are measured for coverage only while the test itself runs: tracing what pytest does around it takes several
    times as long as a short test. Tests with generated or large input are not measured: fixed small examples must reach
    every branch of core/, and tracing makes a thousand inputs take three times as long."""
    tracer = sys.gettrace()
    unmeasured = item.get_closest_marker("unmeasured") is not None or _is_generated(item)
    if coverage.Coverage.current() is None or not (unmeasured or item.nodeid.startswith("tests/core/")):
        yield
        return
    item.stash[TRACER] = None if unmeasured else item.config.stash.get(CORE_TRACER, tracer)  # type: ignore[misc]
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def _is_generated(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    tracer = pyfuncitem.stash.get(TRACER, None)
    if tracer is None:
        return (yield)
    sys.settrace(tracer)
    try:
        return (yield)
    finally:
        sys.settrace(None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Programs that a test starts are not measured; changes of a test to its process are reverted."""
    fresh = item.get_closest_marker("fresh_interpreter") is not None
    with _measured_in_its_call(item), kept(), fresh_interpreters() if fresh else contextlib.nullcontext():
        os.environ.pop(MEASURES_PROGRAMS, None)
        return (yield)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One for all tests with a browser; they go to one worker."""
    from tests.harness.browser import chromium as started

    with started() as made:
        yield made


FIRST = (
    "conformance", "console", "docs", "client", "clients", "conversations", "replicas", "chaos", "bridge", "cli",
    "activity", "governance", "faults", "identity", "features", "config",
)  # fmt: skip
"""Folders whose tests with programs take longest, so that none of them is begun when everything else is over."""
LAST = (
    "faults", "tasks", "upstreams", "access", "console", "catalog", "records", "gateway", "scopes", "structure", "identity",
    "timing", "inbound", "load",
)  # fmt: skip
"""Folders whose tests without programs take longest; one worker begins with the last of them."""


def _starts_programs(item: pytest.Item) -> bool:
    return item.get_closest_marker("starts_programs") is not None


def _place(item: pytest.Item) -> tuple[bool, int, bool]:
    folder, alone = item.nodeid.split("/", 2)[1], group_of(item.nodeid) == item.nodeid
    if not _starts_programs(item):
        return True, LAST.index(folder) if folder in LAST else -1, not alone
    return False, FIRST.index(folder) if folder in FIRST else len(FIRST), alone


def _in_the_order_of_workers(items: list[pytest.Item]) -> None:
    """Slow tests are first, if they start programs, or last: workers take tests from both ends. Without programs most
    workers take them from the front, so slow tests are there."""
    items.sort(key=_place, reverse=not any(map(_starts_programs, items)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "load" else None


def _skip_tests_without_peers(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        needed = {name for mark in item.iter_markers("peers") for name in mark.args}
        missing = [name for name in sorted(needed) if reason_for(name) is not None]
        NOT_RUN.update(missing)
        (left_out if missing else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    _mark_what_starts_programs(items)
    _end_only_hangs(config, items)
    check_groups(items)
    _skip_tests_without_peers(config, items)
    yield
    _in_the_order_of_workers(items)


def _skipped_for(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """Why single tests were skipped; the reasons name what to install."""
    reports = terminalreporter.stats.get("skipped", [])
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports if type(report.longrepr) is tuple)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """What a worker could not fork, for the summary."""
    forked, why_not = getattr(node, "workeroutput", {}).get(FORKED, (0, []))
    FORKING.forked += forked
    NOT_FORKED.update(why_not)


def _report_started_programs(terminalreporter: pytest.TerminalReporter) -> None:
    if FORKING.forked:
        terminalreporter.line(
            f"{FORKING.forked} programs were forked from a process that had already imported their modules"
        )
    for reason in sorted({*NOT_FORKED, *FORKING.why_not()}):
        terminalreporter.line(f"programs were really started, which takes longer: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _report_started_programs(terminalreporter)
    skipped = _skipped_for(terminalreporter)
    if skipped:
        terminalreporter.section("TESTS LEFT OUT, AND WHY")
        for reason, count in sorted(skipped.items()):
            terminalreporter.line(f"{count}: {reason}")
    absent = all_absent() if terminalreporter.config.getoption("programs") != "none" else {}
    if not absent:
        return
    terminalreporter.section("REAL PEERS ABSENT ON THIS MACHINE", red=True, bold=True)
    for name, reason in absent.items():
        # With several workers the collecting happens there, and only they could count.
        left_out = f"{NOT_RUN[name]} tests" if NOT_RUN[name] else "the tests that need it"
        terminalreporter.line(f"{name}: {reason} ({left_out} not run)")
