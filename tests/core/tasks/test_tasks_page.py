"""Checks that the pages about tasks are current: the diagram and the table of states are generated from the code.

To generate them after a change of the table: `python tests/core/tasks/test_tasks_page.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.core.tasks.task_factory import a_task

from taskgate.core.tasks.projections_stateful import stateful_status
from taskgate.core.tasks.projections_stateless import stateless_status
from taskgate.core.tasks.projections_tools import shown_status
from taskgate.core.tasks.state import TaskState, mermaid

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "tasks.md", DOCS / "storage-internals.md")
DIAGRAM = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)
ROWS = re.compile(
    r"(?<=\| state \| 2025-11-25 \| 2026-07-28 \| \[helper and facade tools\]\(facade.md\) \|\n\|---\|---\|---\|---\|\n)(?:\|.*\n)*"
)


def state_rows() -> str:
    rows = ""
    for state in TaskState:
        task = a_task(state=state)
        words = (
            stateful_status(task),
            stateless_status(task),
            shown_status(task, task.created_ms),
        )
        rows += f"| `{state.value}` | {' | '.join(words)} |\n"
    return rows


def fresh(text: str) -> str:
    return ROWS.sub(lambda _: state_rows(), DIAGRAM.sub(lambda _: mermaid(), text), count=1)


def test_the_documentation_shows_the_transition_table() -> None:
    table, diagram = (page.read_text(encoding="utf-8") for page in PAGES)
    assert (table, diagram) == (fresh(table), fresh(diagram)), "a page is out of date: run this file to renew it"
    assert mermaid() in diagram
    assert state_rows() in table


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fresh(page.read_text(encoding="utf-8")), encoding="utf-8")
