"""The names of the gateway's own tools.

This is the only list of them: a tool is declared with one of these names, and the same names are reserved, so that no
server can take the place of a tool of the gateway.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

OWN_SERVER: Final = "taskgate"
"""The server name of the gateway's own tools in rules and in the audit log. It is reserved."""


class OwnToolName(StrEnum):
    ADD_SERVER = "add_server"
    AWAIT_ACTIVITY = "await_activity"
    CALL_TOOL = "call_tool"
    CANCEL_ELICITATION_REQUEST = "cancel_elicitation_request"
    CANCEL_SAMPLING_REQUEST = "cancel_sampling_request"
    CANCEL_TASK = "cancel_task"
    DELETE_TIMER = "delete_timer"
    DESCRIBE_TOOL = "describe_tool"
    DESCRIBE_TOOLS = "describe_tools"
    EXECUTE_TOOL = "execute_tool"
    GET_ELICITATIONS = "get_elicitations"
    GET_LOGS = "get_logs"
    GET_NOTIFICATIONS = "get_notifications"
    GET_PROMPT = "get_prompt"
    GET_SAMPLING_REQUESTS = "get_sampling_requests"
    GET_TASK = "get_task"
    GET_TASK_RESULT = "get_task_result"
    LIST_PROMPTS = "list_prompts"
    LIST_RESOURCE_TEMPLATES = "list_resource_templates"
    LIST_RESOURCES = "list_resources"
    LIST_SERVERS = "list_servers"
    LIST_SKILLS = "list_skills"
    LIST_TASKS = "list_tasks"
    LIST_TIMERS = "list_timers"
    LIST_TOOLS = "list_tools"
    READ_RESOURCE = "read_resource"
    READ_SKILL = "read_skill"
    RECONNECT_SERVER = "reconnect_server"
    REMOVE_SERVER = "remove_server"
    RUN_SCRIPT = "run_script"
    RESPOND_TO_ELICITATION = "respond_to_elicitation"
    RESPOND_TO_SAMPLING = "respond_to_sampling"
    SEARCH_TOOLS = "search_tools"
    SET_TIMER = "set_timer"
    SHOW_TASKS = "show_tasks"
    SUBSCRIBE_RESOURCE = "subscribe_resource"
    UNSUBSCRIBE_RESOURCE = "unsubscribe_resource"


SCRIPT_NAMES: Final = frozenset({OwnToolName.RUN_SCRIPT.value, OwnToolName.DESCRIBE_TOOLS.value})
"""Reserved only in scopes with scripts."""
RESERVED_NAMES: Final = frozenset(name.value for name in OwnToolName) - SCRIPT_NAMES
"""Names that a tool of a server may not be listed under."""
