"""What tools declare about tasks and whether a call complies with it: for both kinds of caller and every mode."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.catalog.task_support import (
    TaskSupport,
    annotated,
    sends_task_status,
    supports_tasks,
    upstream_support,
)
from taskgate.core.governance.task_annotation import (
    TaskCheck,
    annotation_line,
    check_task,
    shown_support,
)
from taskgate.core.settings.governance import Action
from taskgate.core.settings.tasks import AnnotationMode

FORBIDDEN, OPTIONAL, REQUIRED = TaskSupport.FORBIDDEN, TaskSupport.OPTIONAL, TaskSupport.REQUIRED
FORWARD, APPROVE, DENY, POLICY = Action.FORWARD, Action.APPROVE, Action.DENY, Action.POLICY
BOTH = (True, False)


@pytest.mark.parametrize("task_aware", BOTH)
@pytest.mark.parametrize(
    ("action", "upstream_tasks", "own", "expected"),
    [
        (FORWARD, True, None, OPTIONAL),
        (FORWARD, True, OPTIONAL, OPTIONAL),
        (FORWARD, True, REQUIRED, REQUIRED),
        (FORWARD, True, FORBIDDEN, FORBIDDEN),
        (FORWARD, False, None, FORBIDDEN),
        (FORWARD, False, OPTIONAL, FORBIDDEN),
        (APPROVE, True, FORBIDDEN, REQUIRED),
        (APPROVE, False, None, REQUIRED),
        (POLICY, True, OPTIONAL, REQUIRED),
        (POLICY, False, None, REQUIRED),
        (DENY, True, REQUIRED, FORBIDDEN),
        (DENY, False, None, FORBIDDEN),
    ],
)
def test_strict_shows_the_plain_matrix_to_everyone(
    action: Action, upstream_tasks: bool, own: TaskSupport | None, expected: TaskSupport, task_aware: bool
) -> None:
    """Annotation: every row of upstream tasks and approval."""
    shown = shown_support(
        AnnotationMode.STRICT, action, upstream_tasks=upstream_tasks, upstream_support=own, task_aware=task_aware
    )
    assert shown is expected


@pytest.mark.parametrize("own", [None, *TaskSupport])
@pytest.mark.parametrize("upstream_tasks", BOTH)
@pytest.mark.parametrize(
    ("action", "forced", "aware", "unaware"),
    [
        (FORWARD, False, OPTIONAL, OPTIONAL),
        (FORWARD, True, REQUIRED, OPTIONAL),
        (APPROVE, False, REQUIRED, OPTIONAL),
        (APPROVE, True, REQUIRED, OPTIONAL),
        (POLICY, False, REQUIRED, OPTIONAL),
        (POLICY, True, REQUIRED, OPTIONAL),
        (DENY, False, None, None),
        (DENY, True, None, None),
    ],
)
def test_auto_shows_required_only_to_callers_that_know_tasks(
    action: Action,
    forced: bool,
    aware: TaskSupport | None,
    unaware: TaskSupport | None,
    upstream_tasks: bool,
    own: TaskSupport | None,
) -> None:
    def shown(task_aware: bool) -> TaskSupport | None:
        return shown_support(
            AnnotationMode.AUTO,
            action,
            upstream_tasks=upstream_tasks,
            upstream_support=own,
            task_aware=task_aware,
            forced=forced,
        )

    assert (shown(True), shown(False)) == (aware, unaware)


@pytest.mark.parametrize("action", list(Action))
def test_dual_shows_optional_for_all_that_is_listed(action: Action) -> None:
    shown = shown_support(AnnotationMode.DUAL, action, upstream_tasks=True, forced=True)
    assert shown is (None if action is DENY else OPTIONAL)


@pytest.mark.parametrize("action", [FORWARD, APPROVE, POLICY])
def test_force_required_makes_a_tool_required_in_strict_regardless_of_rules(action: Action) -> None:
    """Annotation: force_required override."""
    assert shown_support(AnnotationMode.STRICT, action, upstream_tasks=False, forced=True) is REQUIRED
    assert shown_support(AnnotationMode.STRICT, DENY, upstream_tasks=True, forced=True) is FORBIDDEN


@pytest.mark.parametrize(
    ("shown", "task_present", "expected"),
    [
        (REQUIRED, False, TaskCheck.TASK_REQUIRED),
        (REQUIRED, True, TaskCheck.TASK),
        (OPTIONAL, False, TaskCheck.SYNC),
        (OPTIONAL, True, TaskCheck.TASK),
        (FORBIDDEN, False, TaskCheck.SYNC),
        (FORBIDDEN, True, TaskCheck.TASK_FORBIDDEN),
    ],
)
def test_a_call_must_obey_what_its_tool_shows(shown: TaskSupport, task_present: bool, expected: TaskCheck) -> None:
    """Validation: required + no task, forbidden + task present."""
    assert check_task(shown, task_present=task_present) is expected


@pytest.mark.parametrize("mode", [AnnotationMode.AUTO, AnnotationMode.DUAL])
@pytest.mark.parametrize("action", [FORWARD, APPROVE, POLICY])
@pytest.mark.parametrize("task_aware", BOTH)
@pytest.mark.parametrize("forced", BOTH)
def test_a_task_is_forbidden_only_in_strict(
    mode: AnnotationMode, action: Action, task_aware: bool, forced: bool
) -> None:
    shown = shown_support(mode, action, upstream_tasks=False, task_aware=task_aware, forced=forced)
    assert shown is not None
    assert check_task(shown, task_present=True) is TaskCheck.TASK


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({}, None),
        ({"execution": {"taskSupport": "required"}, "annotations": {"taskSupport": "optional"}}, REQUIRED),
        ({"annotations": {"taskSupport": "optional"}}, OPTIONAL),
        ({"execution": {"taskSupport": "nonsense"}, "annotations": {"taskSupport": "forbidden"}}, FORBIDDEN),
        ({"execution": {"taskSupport": 1}}, None),
        ({"execution": "x", "annotations": None}, None),
    ],
)
def test_task_support_of_the_upstream_is_read_from_execution_first(
    tool: dict[str, Any], expected: TaskSupport | None
) -> None:
    assert upstream_support(tool) is expected


def test_annotating_keeps_every_other_field_and_does_not_change_the_original() -> None:
    tool = {"name": "x", "annotations": {"title": "X", "taskSupport": "optional"}, "execution": {"v": 1}, "vendor": [1]}
    made = annotated(tool, REQUIRED)
    assert made == {
        "name": "x",
        "annotations": {"title": "X", "taskSupport": "required"},
        "execution": {"v": 1, "taskSupport": "required"},
        "vendor": [1],
    }
    assert tool["execution"] == {"v": 1}
    assert annotated({"name": "x", "annotations": None}, OPTIONAL)["annotations"] == {"taskSupport": "optional"}


@pytest.mark.parametrize(
    ("capabilities", "tasks", "status"),
    [
        ({}, False, False),
        ({"tasks": {"requests": {"tools/call": True}}}, True, False),
        ({"tasks": {"requests": {"tools": {"call": {}}}}}, True, False),
        ({"tasks": {"requests": {"tools": {"call": True}}}}, True, False),
        ({"tasks": {"requests": {"tools": {}}}}, False, False),
        ({"tasks": {"requests": {"tools/call": False}}}, False, False),
        ({"tasks": {}}, False, False),
        ({"tasks": "x"}, False, False),
        ({"notifications": {"tasks": {"status": True}}}, False, True),
        ({"notifications": {"tasks": True}}, False, False),
    ],
)
def test_capabilities_are_read_in_either_spelling(capabilities: dict[str, Any], tasks: bool, status: bool) -> None:
    """Upstream capability detection (has tasks, no tasks) and SSE capability detection (has SSE, no SSE)."""
    assert (supports_tasks(capabilities), sends_task_status(capabilities)) == (tasks, status)


@pytest.mark.parametrize(
    ("shown", "action", "upstream_tasks", "forced", "line"),
    [
        (REQUIRED, APPROVE, False, False, "Tool annotation: t -> required (yaml_action=approve)"),
        (OPTIONAL, FORWARD, True, False, "Tool annotation: t -> optional (yaml_action=forward, upstream_tasks=true)"),
        (
            FORBIDDEN,
            FORWARD,
            False,
            False,
            "Tool annotation: t -> forbidden (yaml_action=forward, upstream_tasks=false)",
        ),
        (REQUIRED, POLICY, False, True, "Tool annotation: t -> required (yaml_action=policy, force_required=true)"),
        (None, DENY, False, False, "Tool annotation: t -> not listed (yaml_action=deny)"),
    ],
)
def test_the_log_line_contains_annotation_and_reason(
    shown: TaskSupport | None, action: Action, upstream_tasks: bool, forced: bool, line: str
) -> None:
    assert annotation_line("t", shown, action, upstream_tasks=upstream_tasks, forced=forced) == line
