"""Values that the next release no longer has cause a warning that names the replacement."""

from __future__ import annotations

import pytest

from taskgate.config import load_text


@pytest.mark.parametrize(("mode", "warned"), [("mode: reactions", True), ("app_token: xapp-1", False)])
def test_slack_reactions_cause_a_warning_with_the_replacement(mode: str, warned: bool) -> None:
    text = f"approval: {{default: {{channels: [{{type: slack, channel: C1, bot_token: xoxb-1, {mode}}}]}}}}"
    warnings = [w for w in load_text(text, "t.yaml", environment={}).warnings if "deprecated" in w.message]
    assert [w.key for w in warnings] == (["approval.default.channels[0].mode"] if warned else [])
    assert all("mode: socket" in w.hint for w in warnings)
