"""The table of all own tools by name. A tool that is not in it does not exist."""

from __future__ import annotations

from typing import Any, Final

from taskgate.gateway.own_tools import (
    answer_questions,
    await_activity,
    execute_tool,
    follow_tasks,
    list_offers,
    manage_servers,
    run_scripts,
    search_tools,
    server_messages,
    task_card,
    timers,
    use_resources,
    use_skills,
)
from taskgate.gateway.own_tools.tool import OwnTool

_FAMILIES: Final = (
    follow_tasks.TASK_TOOLS,
    await_activity.WAITING_TOOLS,
    answer_questions.QUESTION_TOOLS,
    list_offers.LISTING_TOOLS,
    execute_tool.EXECUTE_TOOLS,
    use_resources.TOOLS,
    server_messages.MESSAGE_TOOLS,
    timers.TIMER_TOOLS,
    manage_servers.MANAGING_TOOLS,
    search_tools.SEARCH_TOOLS,
    task_card.CARD_TOOLS,
    use_skills.SKILL_TOOLS,
    run_scripts.SCRIPT_TOOLS,
)
TOOLS: Final[dict[str, OwnTool[Any]]] = {tool.face.name: tool for family in _FAMILIES for tool in family}
LOCAL_STATE_TOOLS: Final = frozenset(name for name, tool in TOOLS.items() if tool.has_local_state)
"""Own tools that must be called at the gateway that has their state."""
