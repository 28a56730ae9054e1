"""Checks that the page about tasks is current: its diagram and its table of states are generated from the code.

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

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"
DIAGRAM = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)
ROWS = re.compile(
    r"(?<=\| state \| 2025-11-25 \| 2026-07-28 \| helper and facade tools \|\n\|---\|---\|---\|---\|\n)(?:\|.*\n)*"
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
    text = PAGE.read_text(encoding="utf-8")
    assert text == fresh(text), "docs/tasks.md is out of date: run this file to renew it"
    assert mermaid() in text
    assert state_rows() in text


if __name__ == "__main__":
    PAGE.write_text(fresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
