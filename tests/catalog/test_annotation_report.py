"""After a reload the annotations of all tools are reported again, without blocking callers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.gateway.governance.annotation_report import AnnotationReport
from taskgate.turns import PORTION

TOOLS = 10 * PORTION


async def _empty_result(call: Call) -> dict[str, Any]:
    return {"content": []}


@virtual_time
async def test_reload_reports_annotations_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Upstream("2025")
    for number in range(TOOLS):
        notes.tool(f"delete_{number}", _empty_result)
    rules = {"governance": {"rules": [{"match": "delete_*", "action": "approve"}]}}
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        assert len(await caller.tools()) >= TOOLS
        steps: list[int] = []
        report = AnnotationReport._note

        def counted(self: AnnotationReport, *arguments: Any) -> None:
            steps[-1] += 1
            report(self, *arguments)

        inspecting = AnnotationReport.inspecting

        def stepped(self: AnnotationReport, *arguments: Any) -> Any:
            steps.append(0)
            for _ in inspecting(self, *arguments):
                yield
                steps.append(0)

        monkeypatch.setattr(AnnotationReport, "_note", counted)
        monkeypatch.setattr(AnnotationReport, "inspecting", stepped)
        adopt = AnnotationReport.adopt
        within: list[int] = []

        def adopted(self: AnnotationReport, *arguments: Any) -> None:
            adopt(self, *arguments)
            within.append(sum(steps))

        monkeypatch.setattr(AnnotationReport, "adopt", adopted)
        await gate.reload(rules)
        await gate.advance(1)
        assert within == [0]
        assert sum(steps) >= TOOLS
        assert max(steps) <= PORTION
        shown = (await gate.http("GET", "/metrics").done()).body.decode()
        assert f'taskgate_tools_by_annotation{{annotation="required"}} {TOOLS}.0' in shown
