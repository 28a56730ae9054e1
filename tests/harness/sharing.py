"""Which tests run in one worker: those of a file that shares a gateway or a server, which every worker would otherwise start.

`pytest -n` hands out whole groups through `GroupScheduling`. The controlling process collects nothing, so a group is derived from
the test's file alone: one that has a fixture of a wider scope, in its text or in its folder's conftest. `check_groups` runs where
fixtures are known and refuses a shared fixture that the text does not show.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parent.parent.parent
IN_PARTS = {"tests/governance/test_task_contract.py": 2}
"""Files that would keep one worker busy for long, and whose gateway is worth starting several times."""
TOGETHER = ("tests/structure/", "tests/conformance/test_client_scenarios.py")
"""All of the first read the same source, which is parsed once; all of the second use one process of the suite."""
BROWSER = "tests with a browser"
"""They share one, which takes seconds to start."""
MIN_WORKERS = 4
"""Where there are fewer, each of them is needed for the tests that wait."""
_WITH_BROWSER = re.compile(r"""\bpeers\(["']browser["']""")
_WIDER = re.compile(r"""\bscope=["'](?:module|package|session)["']""")


def group_of(test_id: str, root: Path = ROOT) -> str:
    """The group of tests that one worker runs together with this one; a test that shares nothing is a group by itself."""
    file = test_id.partition("::")[0]
    together = next((each for each in TOGETHER if file.startswith(each)), None)
    if together is not None:
        return together
    if _has_browser(root / file):
        return BROWSER
    if not _shares(root, file):
        return test_id
    return f"{file} {zlib.crc32(test_id.encode()) % IN_PARTS.get(file, 1)}"


@cache
def _has_browser(path: Path) -> bool:
    return path.exists() and _WITH_BROWSER.search(path.read_text()) is not None


@cache
def _shares(root: Path, file: str) -> bool:
    path = root / file
    return any(_WIDER.search(each.read_text()) for each in (path, path.with_name("conftest.py")) if each.exists())


def check_groups(items: Iterable[pytest.Item]) -> None:
    """Raise for a test with a shared fixture that `group_of` does not detect."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
        shared = [each.argname for defs in fixtures for each in defs if _is_shared(each)]
        if shared and group_of(item.nodeid) == item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid} shares {', '.join(shared)}, but neither its file nor its folder's conftest says so"
            )


def _is_shared(fixture: pytest.FixtureDef[object]) -> bool:
    return fixture.scope != "function" and fixture.baseid.startswith("tests")


class GroupScheduling(LoadScopeScheduling):
    """Groups in the order of the collection, which puts slow ones first; a group with many tests need not be slow.

    The collection has tests that start programs first. Such tests wait a lot, so one of several workers begins at the other
    end, with tests that only compute and use the processors while the others wait.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._from_the_end = f"gw{self.numnodes - 1}" if self.numnodes >= MIN_WORKERS else None

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, self.config.rootpath)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == self._from_the_end:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Drop a finished group: the work of a node is counted at every test, and it may have had a thousand groups."""
        super().mark_test_complete(node, item_index, duration)
        work = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(work[group].values()):
            del work[group]
